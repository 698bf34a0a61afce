"""MTP drafting on the device: a chain of one-row passes, re-extended with target rows after every verify.

Draft slot i pairs (final hidden of i, token i+1) and predicts token i+2; the chain's own entries never
survive a verify (specs qwen3_5 5.4, 5.5).
"""

from typing import Protocol

import torch
from torch import Tensor

from ft.fast.request import Request
from ft.fast.sampler import choose_drafts
from ft.fast.table import RequestTable
from ft.reference.types import Features, Proposal, Step, Verdict


class DraftNetwork(Protocol):
    """What a family provides."""

    @property
    def hidden_size(self) -> int: ...

    def forward(self, step: Step, hidden: Tensor) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def state(self, slot: int, committed: int) -> dict[str, Tensor]: ...


class MTPProposer:
    """Implements spec.base.SlottedProposer. `chained` holds c' of draft slot C-1, [slots+1, H]."""

    name = "mtp"
    taps: tuple[int, ...] = ()
    radix_lookahead = True

    def __init__(self, network: DraftNetwork, table: RequestTable, drafts: int, dtype: torch.dtype) -> None:
        self.network = network
        self.table = table
        self.drafts = drafts
        size = (table.committed.shape[0], network.hidden_size)
        self.chained = torch.zeros(size, dtype=dtype, device=table.device)

    def reset(self, slot: int, request: Request) -> None:
        self.chained[slot] = 0

    def on_prefill(self, step: Step, features: Features, next_ids: Tensor) -> None:
        self._extend(step, features.final_hidden, next_ids, step.valid)

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        rows = self.table.rows(step.slots)
        position = step.positions[:, 0]
        counts = torch.where(position > 0, counts, 0)
        hidden = self.chained[step.slots][:, None]
        drafted: list[tuple[Tensor, Tensor, Tensor]] = []
        for index in range(self.drafts):
            if index:
                place = position + index - 1
                link = self._link(step, drafted[-1][0], place, (index < counts).long(), index)
                hidden = self.network.forward(link, hidden)
            logits = self.network.logits(hidden)[:, 0]
            if rows.editor is not None:
                before = [tokens for tokens, _, _ in drafted]
                none = position.new_zeros(position.shape[0], 0)
                logits = rows.editor.edited(logits, torch.stack(before, dim=1) if before else none)
            drafted.append(choose_drafts(logits, position + 1 + index, rows.sampling, position + 1))
        tokens, candidates, q = (torch.stack(parts, dim=1) for parts in zip(*drafted, strict=True))
        return Proposal(tokens, counts, candidates, q)

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        ids = verdict.emitted.clamp(min=0)
        self._extend(step, features.final_hidden, ids, verdict.cut)

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Draft keys and values of the committed slots, and the hidden that the next chain starts from."""
        return {**self.network.state(slot, committed), "chained": self.chained[slot]}

    def _extend(self, step: Step, hidden: Tensor, ids: Tensor, kept: Tensor) -> None:
        """Write draft slots of `kept` [B] rows; the last one's output starts the next chain."""
        extension = Step(
            token_ids=ids,
            positions=step.positions,
            rope_positions=step.rope_positions,
            valid=kept,
            slots=step.slots,
            prefill=step.prefill,
            bound=step.bound,
        )
        output = self.network.forward(extension, hidden)
        last = (kept - 1).clamp(min=0)[:, None, None].expand(-1, 1, output.shape[-1])
        chained = torch.gather(output, 1, last)[:, 0]
        previous = self.chained[step.slots]
        self.chained[step.slots] = torch.where((kept > 0)[:, None], chained, previous)

    def _link(self, step: Step, token: Tensor, place: Tensor, valid: Tensor, index: int) -> Step:
        return Step(
            token_ids=token[:, None],
            positions=place[:, None],
            rope_positions=step.rope_positions + (index - 1),
            valid=valid,
            slots=step.slots,
            bound=None if step.bound is None else step.bound + index,
        )
