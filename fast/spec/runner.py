"""One speculative step on the device: propose, verify, cut, commit, post-verify. k = 0 is plain decoding.

Nothing in `decode` waits for the host; its outputs are copied back while the next step runs.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ft.fast import sampler
from ft.fast.cut import cut
from ft.fast.request import Request
from ft.fast.spec.base import Batch, SlottedProposer, SlottedTarget, StepOutput
from ft.fast.table import RequestRows, RequestTable
from ft.reference.types import Proposal, Step, Verdict


class SpecRunner:
    """Owns a target and at most one proposer, and the request table they share. Implements SpecRuntime."""

    def __init__(
        self,
        target: SlottedTarget,
        proposer: SlottedProposer | None,
        table: RequestTable,
        drafts: int,
        context: int,
        verify: sampler.Verify = sampler.verify,
    ) -> None:
        if (proposer is None) != (drafts == 0):
            raise ValueError(f"k = {drafts} needs {'a' if drafts else 'no'} proposer")
        self.target = target
        self.proposer = proposer
        self.table = table
        self.drafts = drafts
        self.context = context
        self._verify = verify
        self._rows = torch.arange(drafts + 1, device=table.device)

    @property
    def vocabulary(self) -> int:
        return self.target.vocabulary

    def admit(self, slot: int, request: Request, seed: int, drafts: int) -> None:
        self.target.reset(slot)
        self.table.admit(slot, request, seed, drafts)
        if self.proposer is not None:
            self.proposer.reset(slot, request)

    def activate(self, slot: int, committed: int, pending: int) -> None:
        self.table.activate(slot, committed, pending)

    def release(self, slot: int) -> None:
        self.table.deactivate(slot)

    def prefill(self, step: Step, next_ids: Tensor) -> None:
        """Take in one prompt chunk; next_ids [B, R] are the prompt's tokens one further on."""
        features = self.target.forward(replace(step, taps=self._taps))
        self.target.commit(step, step.valid)
        if self.proposer is not None:
            self.proposer.on_prefill(step, features, next_ids)

    def decode(self, batch: Batch) -> StepOutput:
        slots = batch.slots
        rows = self.table.begin(batch)
        proposal = self._propose(slots, rows, batch.bound)
        step = self._verify_step(slots, rows, proposal, batch.bound)
        features = self.target.forward(step)
        logits = self.target.logits(features.final_hidden)
        edited = logits if rows.editor is None else rows.editor.edited_rows(logits, proposal.tokens)
        outcome = self._verify(edited, proposal, rows.sampling, rows.committed + 1)
        logprobs = None
        if batch.mix.logprobs is not None:
            logprobs = sampler.step_logprobs(
                logits, edited, outcome.emitted, rows.sampling, rows.processed, batch.mix.logprobs
            )
        kept, finish = cut(
            outcome.emitted,
            outcome.accepted,
            rows.stop_ids,
            rows.generated,
            rows.max_tokens,
            rows.committed,
            self.context,
        )
        kept = torch.where(rows.active, kept, 0)
        failed = outcome.failed_within(kept)
        verdict = Verdict(outcome.accepted, outcome.emitted, kept)
        self.target.commit(step, kept)
        self.table.advance(slots, rows, kept, outcome.emitted, (finish > 0) | failed)
        if self.proposer is not None:
            self.proposer.post_verify(step, features, verdict)
        finish = torch.where(rows.active, finish, 0)
        return StepOutput(outcome.emitted, kept, proposal.counts, outcome.accepted, finish, failed, logprobs)

    @property
    def _taps(self) -> tuple[int, ...]:
        return () if self.proposer is None else self.proposer.taps

    def _propose(self, slots: Tensor, rows: RequestRows, bound: int) -> Proposal:
        room = torch.minimum(rows.max_tokens - rows.generated - 1, self.context - 1 - rows.committed)
        counts = torch.minimum(rows.drafts, room).clamp(min=0, max=self.drafts)
        counts = torch.where(rows.active, counts, 0)
        if self.proposer is None:
            return Proposal(rows.pending.new_zeros(slots.shape[0], 0), counts)
        positions = rows.committed[:, None]
        pending = Step(
            token_ids=rows.pending[:, None],
            positions=positions,
            rope_positions=positions.expand(3, -1, -1),
            valid=rows.active.long(),
            slots=slots,
            bound=bound,
        )
        return self.proposer.propose(pending, counts)

    def _verify_step(self, slots: Tensor, rows: RequestRows, proposal: Proposal, bound: int) -> Step:
        positions = rows.committed[:, None] + self._rows
        return Step(
            token_ids=torch.cat([rows.pending[:, None], proposal.tokens], dim=1),
            positions=positions,
            rope_positions=positions.expand(3, -1, -1),
            valid=torch.where(rows.active, proposal.counts + 1, 0),
            slots=slots,
            taps=self._taps,
            bound=bound,
        )
