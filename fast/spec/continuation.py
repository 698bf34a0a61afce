"""Proposers for contracts and benchmarks that know the target's own continuation.

The oracle offers it as it is, so that every draft is right; the script makes a chosen number of drafts right and
the next one wrong, so that any accept count can be had at will.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ft.fast.request import Request
from ft.fast.table import RequestTable
from ft.reference.types import Features, Proposal, Step, Verdict


class OracleProposer:
    """Offers the known continuation of each prompt. `sequences` [slots+1, context] is indexed by position."""

    name = "oracle"
    taps: tuple[int, ...] = ()
    radix_lookahead = False

    def __init__(
        self,
        continuations: Mapping[tuple[int, ...], Sequence[int]],
        table: RequestTable,
        drafts: int,
        context: int,
    ) -> None:
        self.continuations = continuations
        self.drafts = drafts
        self.sequences = torch.zeros(
            table.committed.shape[0], context + drafts, dtype=torch.int64, device=table.device
        )

    def reset(self, slot: int, request: Request) -> None:
        known = (*request.prompt, *self.continuations[request.prompt])[: self.sequences.shape[1]]
        self.sequences[slot] = 0
        self.sequences[slot, : len(known)] = torch.tensor(known).to(self.sequences.device)

    def on_prefill(self, step: Step, features: Features, next_ids: Tensor) -> None:
        """Nothing to take in."""

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        return Proposal(self._continuation(step), counts)

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        """Nothing to bring forward."""

    def _continuation(self, step: Step) -> Tensor:
        ahead = torch.arange(1, self.drafts + 1, device=step.positions.device)
        index = (step.positions + ahead).clamp(max=self.sequences.shape[1] - 1)
        return torch.gather(self.sequences[step.slots], 1, index)


class ScriptedProposer(OracleProposer):
    """Makes exactly script[i] drafts of a request's step i right and the next one wrong; the script repeats."""

    name = "scripted"

    def __init__(
        self,
        continuations: Mapping[tuple[int, ...], Sequence[int]],
        script: Sequence[int],
        table: RequestTable,
        drafts: int,
        context: int,
        vocabulary: int,
    ) -> None:
        super().__init__(continuations, table, drafts, context)
        self.script = torch.tensor(script, dtype=torch.int64, device=table.device)
        self.vocabulary = vocabulary
        self.steps = torch.zeros_like(table.committed)

    def reset(self, slot: int, request: Request) -> None:
        super().reset(slot, request)
        self.steps[slot] = 0

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        right = self._continuation(step)
        wanted = self.script[self.steps[step.slots] % self.script.shape[0]]
        rows = torch.arange(self.drafts, device=right.device)
        tokens = torch.where(rows < wanted[:, None], right, (right + 1) % self.vocabulary)
        return Proposal(tokens, counts)

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        self.steps[step.slots] += (verdict.cut > 0).long()
