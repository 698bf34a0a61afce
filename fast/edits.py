"""What changes the logits of B requests before their laws are made: stages 1 to 6 of verify_sampling 2.

Everything that a row depends on is derived from the request's tokens and the drafts before the row, so nothing has
to be counted along, rolled back or kept in step. Drafting, plain decoding and verification call the same `Editor`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

UNUSED = -1
"""Marks unused places of lists of ids; no id."""


class MaskSource(Protocol):
    """Grammar masks of one step, from the host."""

    def row(self, drafts: Tensor) -> Tensor:
        """int32 [B, ceil(V / 32)]: bit v % 32 of word v // 32 allows id v after drafts int64 [B, r]."""
        ...


@dataclass(frozen=True)
class EditRows:
    """Edits of B requests on the device; lists of ids are padded with UNUSED.

    repetition, frequency, presence: fp32 [B]. min_tokens: int64 [B]. stop_ids: int64 [B, S]. bias_ids: int64 [B, N],
    bias: fp32 [B, N], 0 where unused. allowed_ids: int64 [B, N]; limited: bool [B], whether they apply. bad_words: int64
    [B, W, L], padded on the left. thinking: int64 [B], the budget, UNUSED for none; thinking_end: int64 [B, E].
    """

    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    min_tokens: Tensor
    stop_ids: Tensor
    bias_ids: Tensor
    bias: Tensor
    allowed_ids: Tensor
    limited: Tensor
    bad_words: Tensor
    thinking: Tensor
    thinking_end: Tensor


@dataclass(frozen=True)
class Texts:
    """The tokens of B requests. tokens: int32 [B, T], valid below `length`, of which the first `prompt` are the
    prompt's; both int64 [B]."""

    tokens: Tensor
    length: Tensor
    prompt: Tensor

    @property
    def generated(self) -> Tensor:
        return self.length - self.prompt

    def after(self, drafts: Tensor) -> Tensor:
        """int64 [B, T + r]: the tokens with drafts int64 [B, r] behind them."""
        spare = torch.zeros_like(drafts)
        places = self.length[:, None] + torch.arange(drafts.shape[1], device=drafts.device)
        return torch.cat([self.tokens.long(), spare], 1).scatter(1, places, drafts)


@dataclass(frozen=True)
class Editor:
    """Edits rows of one step. masks: grammar masks, None where no request has a grammar."""

    rows: EditRows
    texts: Texts
    vocabulary: int
    masks: MaskSource | None = None

    def edited(self, logits: Tensor, drafts: Tensor) -> Tensor:
        """fp32 [B, V]: logits [B, V] of one row a request after stages 1 to 6, drafts int64 [B, r] before the row.

        NaN and +inf stay as they are, so that a broken row is still seen to be broken.
        """
        original = logits.to(torch.float32)
        row = self._biased(original)
        row = torch.where(self._stops_banned(drafts.shape[1]), -math.inf, row)
        row = self._penalised(row, drafts)
        row = torch.where(self._words_banned(drafts), -math.inf, row)
        if self.masks is not None:
            row = torch.where(self._unpacked(self.masks.row(drafts)), row, -math.inf)
        row = self._forced(row, drafts)
        return torch.where(torch.isnan(original) | torch.isposinf(original), original, row)

    def edited_rows(self, logits: Tensor, drafts: Tensor) -> Tensor:
        """fp32 [B, R, V]: row r of logits [B, R, V] edited after the first r of drafts int64 [B, R - 1]."""
        rows = [self.edited(logits[:, index], drafts[:, :index]) for index in range(logits.shape[1])]
        return torch.stack(rows, dim=1)

    def _marked(self, ids: Tensor) -> Tensor:
        """bool [B, V]: where ids [B, N] point."""
        width = self.vocabulary
        places = torch.where((ids >= 0) & (ids < width), ids, width)
        marks = torch.zeros(ids.shape[0], width + 1, dtype=torch.bool, device=ids.device)
        return marks.scatter(1, places, True)[:, :width]

    def _counted(self, ids: Tensor, valid: Tensor) -> Tensor:
        """int32 [B, V]: how often each id stands in ids [B, N] where valid."""
        width = self.vocabulary
        places = torch.where(valid & (ids >= 0) & (ids < width), ids, width).long()
        ones = torch.ones_like(places, dtype=torch.int32)
        counts = torch.zeros(ids.shape[0], width + 1, dtype=torch.int32, device=ids.device)
        return counts.scatter_add(1, places, ones)[:, :width]

    @cached_property
    def _places(self) -> Tensor:
        return torch.arange(self.texts.tokens.shape[1], device=self.texts.tokens.device)

    @cached_property
    def _emitted(self) -> Tensor:
        """int32 [B, V]: counts of the output, drafts left out."""
        known = self._places < self.texts.length[:, None]
        return self._counted(self.texts.tokens, known & (self._places >= self.texts.prompt[:, None]))

    @cached_property
    def _prompted(self) -> Tensor:
        """bool [B, V]: ids of the prompt."""
        return self._counted(self.texts.tokens, self._places < self.texts.prompt[:, None]) > 0

    @cached_property
    def _allowed(self) -> Tensor:
        return self._marked(self.rows.allowed_ids) | ~self.rows.limited[:, None]

    def _biased(self, row: Tensor) -> Tensor:
        row = row.scatter_add(1, self.rows.bias_ids.clamp(min=0), self.rows.bias)
        return torch.where(self._allowed, row, -math.inf)

    def _stops_banned(self, before: int) -> Tensor:
        short = self.texts.generated + before < self.rows.min_tokens
        return self._marked(self.rows.stop_ids) & short[:, None]

    def _penalised(self, row: Tensor, drafts: Tensor) -> Tensor:
        counts = self._emitted
        if drafts.shape[1]:
            counts = counts + self._counted(drafts, torch.ones_like(drafts, dtype=torch.bool))
        seen = (counts > 0) | self._prompted
        repetition = self.rows.repetition[:, None]
        row = torch.where(seen, torch.where(row > 0, row / repetition, row * repetition), row)
        return row - self.rows.frequency[:, None] * counts - self.rows.presence[:, None] * (counts > 0)

    def _words_banned(self, drafts: Tensor) -> Tensor:
        words = self.rows.bad_words
        before = words.shape[2] - 1
        text = self.texts.after(drafts)
        places = (self.texts.length + drafts.shape[1])[:, None] - before
        places = places + torch.arange(before, device=text.device)
        tail = torch.where(places >= 0, text.gather(1, places.clamp(min=0)), UNUSED - 1)
        first = words[:, :, :-1]
        matched = ((first == UNUSED) | (first == tail[:, None])).all(-1)
        return self._marked(torch.where(matched, words[:, :, -1], UNUSED))

    def _unpacked(self, masks: Tensor) -> Tensor:
        ids = torch.arange(self.vocabulary, device=masks.device)
        return (masks[:, ids // 32] >> (ids % 32)) & 1 == 1

    def _forced(self, row: Tensor, drafts: Tensor) -> Tensor:
        """Stage 6: only the next id of `thinking_end` where the budget is spent and thinking goes on."""
        end, budget = self.rows.thinking_end, self.rows.thinking
        length = (end != UNUSED).sum(-1)
        place = self.texts.generated + drafts.shape[1] - budget
        due = (budget >= 0) & (place >= 0) & (place < length) & ~self._thinking_ended(drafts)
        token = end.gather(1, place.clamp(min=0, max=end.shape[1] - 1)[:, None])
        only = torch.arange(self.vocabulary, device=row.device) == token
        return torch.where(due[:, None], torch.where(only, 0.0, -math.inf), row)

    def _thinking_ended(self, drafts: Tensor) -> Tensor:
        """bool [B]: `thinking_end` stands within the budget's tokens of the output."""
        end, text = self.rows.thinking_end, self.texts.after(drafts)
        starts = torch.arange(text.shape[1], device=text.device)
        matched = torch.ones_like(text, dtype=torch.bool)
        for offset in range(end.shape[1]):
            wanted = end[:, offset : offset + 1]
            there = text.gather(1, (starts + offset).clamp(max=text.shape[1] - 1).expand_as(text))
            matched &= (wanted == UNUSED) | (there == wanted)
        length = (end != UNUSED).sum(-1)
        last = self.texts.prompt + self.rows.thinking - length
        inside = (starts >= self.texts.prompt[:, None]) & (starts <= last[:, None])
        return (matched & inside).any(-1)
