"""A proposer that knows the text: it drafts the target's own continuation, so that every draft is accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ft.reference.types import Features, Proposal, Step, Verdict


@dataclass(frozen=True)
class OracleProposer:
    """texts: slot -> the whole token sequence of its request, prompt included, indexed by position."""

    texts: Mapping[int, Sequence[int]]

    @property
    def name(self) -> str:
        return "oracle"

    @property
    def taps(self) -> tuple[int, ...]:
        return ()

    @property
    def radix_lookahead(self) -> bool:
        return False

    def on_prefill(self, step: Step, features: Features, next_ids: Tensor) -> None:
        """Nothing to take in."""

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        """The tokens that follow each pending token; fewer where a known text ends."""
        return pad([self.continuation(step, index, int(count)) for index, count in enumerate(counts)])

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        """Nothing to bring forward."""

    def continuation(self, step: Step, index: int, count: int) -> list[int]:
        """At most `count` tokens after the pending token of request `index` of the step."""
        start = int(step.positions[index, 0]) + 1
        return list(self.texts[int(step.slots[index])][start : start + count])


def pad(runs: Sequence[Sequence[int]]) -> Proposal:
    """Runs of drafts as one proposal of point masses [B, longest run]; padding is token 0."""
    tokens = torch.zeros(len(runs), max(len(run) for run in runs), dtype=torch.int64)
    for index, run in enumerate(runs):
        tokens[index, : len(run)] = torch.tensor(run, dtype=torch.int64)
    return Proposal(tokens, torch.tensor([len(run) for run in runs]))
