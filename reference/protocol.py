"""What both engines implement: targets, proposers and per-request states. No global context anywhere."""

from typing import Protocol

from torch import Tensor

from ft.reference.types import Features, Proposal, Step, Verdict


class Target(Protocol):
    """A model that reads a step of rows. A forward stages; only `commit` moves live state."""

    @property
    def vocabulary(self) -> int: ...

    def forward(self, step: Step) -> Features:
        """Hidden rows for `step`. Live recurrent state is read and left as it was; KV rows are written."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits [..., V] of hidden rows [..., H] after the final norm."""
        ...

    def commit(self, step: Step, kept: Tensor) -> None:
        """Move every state of the step's requests to exactly `kept` [B] rows of the last forward."""
        ...


class SlotState(Protocol):
    """Per-request state that is a running sum and so cannot be rolled back by a length."""

    @property
    def name(self) -> str: ...

    def reset(self, slot: int) -> None:
        """State of an empty request."""
        ...

    def commit(self, step: Step, kept: Tensor) -> None:
        """Move to exactly `kept` [B] staged rows, also when all or none were kept."""
        ...


class Proposer(Protocol):
    """A draft source. The engine obeys its properties and never guesses."""

    @property
    def name(self) -> str: ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs the draft reads."""
        ...

    @property
    def radix_lookahead(self) -> bool:
        """Whether a draft state of slot i depends on token i+1, so that cache keys must pair them."""
        ...

    def on_prefill(self, step: Step, features: Features, next_ids: Tensor) -> None:
        """Take in a prompt chunk. next_ids: int64 [B, R], the token after each row."""
        ...

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        """Drafts for the requests of `step`, whose R = 1 row is the pending token. counts: int64 [B]."""
        ...

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        """Bring the draft state to the committed length after a verify of `step`."""
        ...
