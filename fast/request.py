"""What goes into the engine and what comes out of it, request by request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from torch import Tensor

from ft.reference.types import Edits, Sampling

NO_EDITS = Edits()


class Grammar(Protocol):
    """What may follow the output of one request, as the engine sees it. It belongs to that request."""

    def row(self, drafts: Sequence[int]) -> Tensor:
        """int32 [ceil(V / 32)], bit v % 32 of word v // 32 allows id v after the output and `drafts`; all ids where a
        draft was not allowed. The state stays as it was."""
        ...

    def accept(self, tokens: Sequence[int]) -> bool:
        """Take emitted tokens in. False when one was not allowed."""
        ...


class FinishReason(StrEnum):
    """Why a request ended. At the same token a stop wins over a length limit."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class Request:
    """One request, validated: prompt ids in [0, V), 1 <= len(prompt) < context, max_tokens >= 1.

    stop_ids end the request when emitted; empty to ignore them. drafts limits k for this request,
    0 turns speculation off, None takes the engine's k. logprobs: how many likeliest tokens to report beside the
    log probability of each emitted one, None for no report; processed_logprobs: of the law that was sampled from and
    not of the model's own. grammar: the state of its structured output.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: tuple[int, ...] = ()
    drafts: int | None = None
    logprobs: int | None = None
    processed_logprobs: bool = False
    grammar: Grammar | None = None

    @property
    def edits_logits(self) -> bool:
        return self.grammar is not None or self.sampling.edits != NO_EDITS


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probability of an emitted token, and of the likeliest ids at its place, larger first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Update:
    """What one step emitted for one request.

    tokens: the run after cuts (a stop id included). drafted, accepted: drafts offered and accepted by the
    rule in this step. finish: set on the last update of a request. error: why it failed, with ERROR.
    logprobs: one a token, or none when the request wants none.
    """

    request_id: str
    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    finish: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


class EngineLike(Protocol):
    """The engine as the text and server layers see it. Not thread-safe: one thread calls it."""

    def add(self, request: Request) -> None:
        """Queue a request. ValueError names the value and the limit when it can never run."""
        ...

    def abort(self, request_id: str) -> None:
        """Stop a request; its last update carries ABORT. Unknown or finished ids are ignored."""
        ...

    def step(self) -> list[Update]:
        """Launch the next step and return what the previous one emitted."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, running or in flight."""
        ...
