"""Request state that lives on the device, one row a request slot, the last row a sink for padding.

A step reads and updates it without the host; the host writes a row once, when a request is admitted, and
switches it on when its prompt is in.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ft.fast.edit_table import EditTable
from ft.fast.edits import Editor, Texts
from ft.fast.request import Request
from ft.fast.sampling import ALL_MODES, SamplingRows, signed
from ft.fast.spec.base import Batch, SamplingMix

ANY_MIX = SamplingMix(ALL_MODES, filtered=True, edited=True)
"""What is known of a batch before the first one."""

STOP_IDS = 16
"""Stop ids a request may have; they are matched on the device."""


@dataclass(frozen=True)
class RequestRows:
    """The table's rows of one batch, as tensors [B]; stop_ids [B, STOP_IDS], -1 where unused.

    editor: None where no request of the batch edits its logits. processed: bool [B], requests whose log
    probabilities are those of the final law.
    """

    committed: Tensor
    pending: Tensor
    active: Tensor
    generated: Tensor
    max_tokens: Tensor
    drafts: Tensor
    stop_ids: Tensor
    processed: Tensor
    sampling: SamplingRows
    editor: Editor | None


class RequestTable:
    """Fixed buffers, [slots + 1] each. tokens: int32 [slots + 1, context + 1], every token of a request by
    position, the pending one included; the last column takes what is not emitted."""

    def __init__(self, slots: int, context: int, vocabulary: int, device: torch.device) -> None:
        def integers() -> Tensor:
            return torch.zeros(slots + 1, dtype=torch.int64, device=device)

        def reals() -> Tensor:
            return torch.zeros(slots + 1, dtype=torch.float32, device=device)

        self.device = device
        self.vocabulary = vocabulary
        self._batch: Batch | None = None
        self.edits = EditTable(slots, device)
        self.tokens = torch.zeros(slots + 1, context + 1, dtype=torch.int32, device=device)
        self.prompt = integers()
        self.processed = torch.zeros(slots + 1, dtype=torch.bool, device=device)
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
        self.tokens[slot, : len(request.prompt)] = torch.tensor(request.prompt, dtype=torch.int32).to(
            self.device
        )
        self.prompt[slot] = len(request.prompt)
        self.processed[slot] = request.processed_logprobs
        self.edits.admit(slot, sampling.edits)
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

    def begin(self, batch: Batch) -> RequestRows:
        """Rows of a batch; until the next one `rows` keeps to what the host knows of it."""
        self._batch = batch
        return self.rows(batch.slots)

    def rows(self, slots: Tensor) -> RequestRows:
        """Rows of `slots` [B]; sink rows are inactive."""
        mix = ANY_MIX if self._batch is None else self._batch.mix
        return RequestRows(
            committed=self.committed[slots],
            pending=self.pending[slots],
            active=self.active[slots],
            generated=self.generated[slots],
            max_tokens=self.max_tokens[slots],
            drafts=self.drafts[slots],
            stop_ids=self.stop_ids[slots],
            processed=self.processed[slots],
            editor=self._editor(slots, mix),
            sampling=SamplingRows(
                temperature=self.temperature[slots],
                top_k=self.top_k[slots],
                top_p=self.top_p[slots],
                min_p=self.min_p[slots],
                seed=self.seed[slots],
                mode=self.mode[slots],
                modes=mix.modes,
                filtered=mix.filtered,
            ),
        )

    def _editor(self, slots: Tensor, mix: SamplingMix) -> Editor | None:
        if not mix.edited:
            return None
        batch = self._batch
        bound = self.tokens.shape[1] if batch is None else batch.bound
        texts = Texts(self.tokens[slots, :bound], self.committed[slots] + 1, self.prompt[slots])
        masks = None if batch is None else batch.masks
        return Editor(self.edits.rows(slots, self.stop_ids[slots]), texts, self.vocabulary, masks)

    def advance(
        self, slots: Tensor, rows: RequestRows, cut: Tensor, emitted: Tensor, finished: Tensor
    ) -> None:
        """Account for `cut` [B] emitted tokens of `emitted` [B, R]; a finished row goes off for good."""
        index = torch.arange(emitted.shape[1], device=emitted.device)
        places = torch.where(
            index < cut[:, None], rows.committed[:, None] + 1 + index, self.tokens.shape[1] - 1
        )
        self.tokens[slots[:, None], places] = emitted.to(torch.int32)
        last = torch.gather(emitted, 1, (cut - 1).clamp(min=0)[:, None])[:, 0]
        self.committed[slots] = rows.committed + cut
        self.generated[slots] = rows.generated + cut
        self.pending[slots] = torch.where(cut > 0, last, rows.pending)
        self.active[slots] = rows.active & ~finished
