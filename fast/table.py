"""Request state that lives on the device, one row a request slot, the last row a sink for padding.

A step reads and updates it without the host; the host writes a row once, when a request is admitted, and
switches it on when its prompt is in.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ft.fast.request import Request
from ft.fast.sampling import ALL_MODES, SamplingRows, signed
from ft.fast.spec.base import SamplingMix

STOP_IDS = 16
"""Stop ids a request may have; they are matched on the device."""


@dataclass(frozen=True)
class RequestRows:
    """The table's rows of one batch, as tensors [B]; stop_ids [B, STOP_IDS], -1 where unused."""

    committed: Tensor
    pending: Tensor
    active: Tensor
    generated: Tensor
    max_tokens: Tensor
    drafts: Tensor
    stop_ids: Tensor
    sampling: SamplingRows


class RequestTable:
    """Fixed buffers, [slots + 1] each."""

    def __init__(self, slots: int, device: torch.device) -> None:
        def integers() -> Tensor:
            return torch.zeros(slots + 1, dtype=torch.int64, device=device)

        def reals() -> Tensor:
            return torch.zeros(slots + 1, dtype=torch.float32, device=device)

        self.device = device
        self.mix = SamplingMix(ALL_MODES, filtered=True)
        self.committed, self.pending, self.generated = integers(), integers(), integers()
        self.max_tokens, self.drafts = integers(), integers()
        self.active = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        self.stop_ids = torch.full((slots + 1, STOP_IDS), -1, dtype=torch.int64, device=device)
        self.temperature, self.top_p, self.min_p = reals(), reals(), reals()
        self.top_k, self.seed, self.mode = integers(), integers(), integers()

    def admit(self, slot: int, request: Request, seed: int, drafts: int) -> None:
        """Write a request's parameters; the row stays off until `activate`."""
        sampling = request.sampling
        self.active[slot] = False
        self.generated[slot] = 0
        self.max_tokens[slot] = request.max_tokens
        self.drafts[slot] = drafts
        self.stop_ids[slot] = -1
        if request.stop_ids:
            ids = torch.tensor(request.stop_ids, dtype=torch.int64)
            self.stop_ids[slot, : len(request.stop_ids)] = ids.to(self.device)
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = sampling.top_k
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = signed(seed)
        self.mode[slot] = int(sampling.mode())

    def activate(self, slot: int, committed: int, pending: int) -> None:
        """Let a request decode from `committed` positions with `pending` as its next input."""
        self.committed[slot] = committed
        self.pending[slot] = pending
        self.active[slot] = True

    def deactivate(self, slot: int) -> None:
        self.active[slot] = False

    def rows(self, slots: Tensor) -> RequestRows:
        """Rows of `slots` [B]; sink rows are inactive."""
        return RequestRows(
            committed=self.committed[slots],
            pending=self.pending[slots],
            active=self.active[slots],
            generated=self.generated[slots],
            max_tokens=self.max_tokens[slots],
            drafts=self.drafts[slots],
            stop_ids=self.stop_ids[slots],
            sampling=SamplingRows(
                temperature=self.temperature[slots],
                top_k=self.top_k[slots],
                top_p=self.top_p[slots],
                min_p=self.min_p[slots],
                seed=self.seed[slots],
                mode=self.mode[slots],
                modes=self.mix.modes,
                filtered=self.mix.filtered,
            ),
        )

    def advance(
        self, slots: Tensor, rows: RequestRows, cut: Tensor, emitted: Tensor, finished: Tensor
    ) -> None:
        """Account for `cut` [B] emitted tokens of `emitted` [B, R]; a finished row goes off for good."""
        last = torch.gather(emitted, 1, (cut - 1).clamp(min=0)[:, None])[:, 0]
        self.committed[slots] = rows.committed + cut
        self.generated[slots] = rows.generated + cut
        self.pending[slots] = torch.where(cut > 0, last, rows.pending)
        self.active[slots] = rows.active & ~finished
