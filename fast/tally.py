"""Counts of one generation: tokens, steps, and how often the draft at each position was accepted."""

from collections.abc import Iterable
from dataclasses import dataclass

from ft.fast.request import Update


@dataclass(frozen=True)
class Tally:
    """offered, accepted: how many steps drafted, and accepted, the draft at each position, first to last."""

    tokens: int
    steps: int
    offered: tuple[int, ...]
    accepted: tuple[int, ...]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Share of the drafts at each position that were accepted."""
        return tuple(kept / all_ for kept, all_ in zip(self.accepted, self.offered, strict=True))

    def as_dict(self) -> dict[str, int | float | list[int] | list[float]]:
        """The counts and what follows from them, for JSON."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_step": self.tokens_per_step,
            "offered_by_position": list(self.offered),
            "accepted_by_position": list(self.accepted),
        }

    def line(self) -> str:
        """One line for a person."""
        text = f"{self.tokens} tokens in {self.seconds:.2f} s, {self.tokens_per_second:.1f} tokens/s"
        text += f", {self.tokens_per_step:.2f} tokens a step"
        if self.offered:
            shares = " ".join(f"{share:.0%}" for share in self.acceptance)
            text += f", accepted by position {shares}"
        return text


def tally(updates: Iterable[Update], seconds: float) -> Tally:
    """Add up the updates of one request that took `seconds`."""
    steps = [update for update in updates if update.tokens]
    deepest = max((update.drafted for update in steps), default=0)
    return Tally(
        tokens=sum(len(update.tokens) for update in steps),
        steps=len(steps),
        offered=tuple(sum(update.drafted > place for update in steps) for place in range(deepest)),
        accepted=tuple(sum(update.accepted > place for update in steps) for place in range(deepest)),
        seconds=seconds,
    )
