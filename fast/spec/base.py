"""The one interface that the engine sees of speculation: `SpecRuntime`, and what a step puts out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ft.fast.edits import MaskSource
from ft.fast.logprobs import StepLogprobs
from ft.fast.request import Request
from ft.reference.protocol import Proposer, Target
from ft.reference.types import Step, Verification


class SlottedTarget(Target, Protocol):
    """A target whose per-request states sit in slots that are used again."""

    def reset(self, slot: int) -> None:
        """State of an empty request."""
        ...

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Every per-request state by name over the committed positions, for contracts."""
        ...


class SlottedProposer(Proposer, Protocol):
    """A proposer whose per-request states sit in slots that are used again."""

    def reset(self, slot: int, request: Request) -> None:
        """A new request sits in `slot`; nothing of the last one may be seen."""
        ...


@dataclass(frozen=True)
class SamplingMix:
    """The host's promise about a batch: the verifications that occur, whether any request filters by top-k or top-p,
    whether any edits its logits, and the most log probabilities that any wants beside the emitted token's (None:
    none wants any). It skips work and changes no bit."""

    modes: frozenset[Verification]
    filtered: bool
    edited: bool = False
    logprobs: int | None = None

    @classmethod
    def of(cls, requests: Iterable[Request]) -> "SamplingMix":
        listed = list(requests)
        samplings = [request.sampling for request in listed]
        wanted = [request.logprobs for request in listed if request.logprobs is not None]
        return cls(
            modes=frozenset(one.mode() for one in samplings),
            filtered=any(one.top_k > 0 or one.top_p < 1.0 for one in samplings),
            edited=any(request.edits_logits for request in listed),
            logprobs=max(wanted, default=None),
        )


@dataclass(frozen=True)
class Batch:
    """Requests of one decode step: slots [B] on the device, padded with the sink; bound: no valid row stands at
    or beyond this position; masks: of the requests with a grammar."""

    slots: Tensor
    bound: int
    mix: SamplingMix
    masks: MaskSource | None = None


@dataclass(frozen=True)
class StepOutput:
    """Results of a decode step on the device, int64 [B] but for emitted [B, k+1] and failed bool [B].

    cut: tokens emitted, 0 for an inactive row. finish: codes of fast.cut. logprobs: of the emitted tokens, None when
    no request wants them.
    """

    emitted: Tensor
    cut: Tensor
    drafted: Tensor
    accepted: Tensor
    finish: Tensor
    failed: Tensor
    logprobs: StepLogprobs | None = None


class SpecRuntime(Protocol):
    """Target, proposer and request table behind the few calls that the engine makes."""

    @property
    def vocabulary(self) -> int: ...

    def admit(self, slot: int, request: Request, seed: int, drafts: int) -> None:
        """Reset the slot's states and write the request's parameters; it does not decode yet."""
        ...

    def activate(self, slot: int, committed: int, pending: int) -> None:
        """The prompt is in: decode from here."""
        ...

    def release(self, slot: int) -> None:
        """Switch a slot off."""
        ...

    def prefill(self, step: Step, next_ids: Tensor) -> None:
        """Take in one prompt chunk; next_ids [B, R] are the prompt's tokens one further on."""
        ...

    def decode(self, batch: Batch) -> StepOutput:
        """One step of the requests in the batch."""
        ...
