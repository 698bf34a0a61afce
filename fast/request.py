"""What goes into the engine and what comes out of it, request by request."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ft.reference.types import Sampling


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
    0 turns speculation off, None takes the engine's k.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: tuple[int, ...] = ()
    drafts: int | None = None


@dataclass(frozen=True)
class Update:
    """What one step emitted for one request.

    tokens: the run after cuts (a stop id included). drafted, accepted: drafts offered and accepted by the
    rule in this step. finish: set on the last update of a request. error: why it failed, with ERROR.
    """

    request_id: str
    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    finish: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 0


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
