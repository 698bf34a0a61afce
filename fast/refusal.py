"""What a person can put right: a refused choice or a checkpoint that cannot be used. No traceback is needed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """subject: the flag or file, with its value. limit: what it breaks. way_out: what to do instead."""

    subject: str
    limit: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.limit}; {self.way_out}"


class Refusal(ValueError):
    """Every problem found at once, in the order of the flags."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def refuse(subject: str, limit: str, way_out: str) -> Refusal:
    """A refusal of one problem, to be raised."""
    return Refusal([Problem(subject, limit, way_out)])
