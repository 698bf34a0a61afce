"""Per-request states that are running sums: a forward stages rows, `commit` moves to exactly the rows kept.

The reference keeps the staged input rows and runs them again from the live state, so that a commit cannot differ
from a fresh run over the same tokens.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from ft.reference.types import Step

State = TypeVar("State")


def require_handlers(states: Iterable[object]) -> None:
    """Refuse a state that a verify could not take back. ValueError names it."""
    bare = [state for state in states if not callable(getattr(state, "commit", None))]
    if bare:
        raise ValueError(
            f"{getattr(bare[0], 'name', type(bare[0]).__name__)} has no commit handler, so rejected rows would stay "
            "in it; give it commit(step, kept), or serve this model with speculation off"
        )


@dataclass
class RunningState(Generic[State]):
    """Implements protocol.SlotState for one layer. advance(rows [T, H], state) is the state after them."""

    name: str
    empty: Callable[[], State]
    advance: Callable[[Tensor, State], State]
    live: dict[int, State] = field(default_factory=dict)
    staged: dict[int, Tensor] = field(default_factory=dict)

    def read(self, slot: int) -> State:
        """The live state of a slot; an unused slot is empty."""
        return self.live.get(slot, self.empty())

    def reset(self, slot: int) -> None:
        """State of an empty request."""
        self.live.pop(slot, None)
        self.staged.pop(slot, None)

    def stage(self, slot: int, rows: Tensor) -> None:
        """Input rows [T, H] of the last forward, in place of any staged before."""
        self.staged[slot] = rows

    def commit(self, step: Step, kept: Tensor) -> None:
        """Move every slot of the step to exactly `kept` [B] staged rows.

        ValueError names state, slot and count when a count is out of range; no slot has moved then.
        """
        counts = {int(slot): int(count) for slot, count in zip(step.slots, kept, strict=True)}
        for slot, count in counts.items():
            available = self.staged[slot].shape[0] if slot in self.staged else 0
            if not 0 <= count <= available:
                raise ValueError(f"{self.name}: {count} rows to keep of slot {slot}; {available} are staged")
        for slot, count in counts.items():
            rows = self.staged.pop(slot, None)
            if rows is not None and count:
                self.live[slot] = self.advance(rows[:count], self.read(slot))
