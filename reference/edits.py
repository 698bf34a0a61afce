"""What changes a row's logits before its law is made: stages 1 to 6 of verify_sampling 2.

A row sees the prompt, what was emitted, and the drafts of its step that stand before it. Plain decoding and
verification call the same function.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ft.reference.types import Edits, Sampling, ThinkingBudget

Allowed = Callable[[tuple[int, ...]], Tensor]
"""A grammar: from the output so far to the ids that may follow, bool [V]."""


@dataclass(frozen=True)
class History:
    """The tokens before a row. output: what was emitted, and then the drafts before the row."""

    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    grammar: Allowed | None = None

    def after(self, tokens: Sequence[int]) -> "History":
        return replace(self, output=(*self.output, *tokens))


@dataclass(frozen=True)
class RequestLaw:
    """Everything that decides the law of a request's rows besides the model."""

    sampling: Sampling
    seed: int
    history: History = History()

    def after(self, tokens: Sequence[int]) -> "RequestLaw":
        return replace(self, history=self.history.after(tokens))

    def rows(self, logits: Tensor, drafts: Sequence[int]) -> Tensor:
        """fp32 [R, V]: each row of logits edited, row r after the first r drafts."""
        edits = self.sampling.edits
        return torch.stack(
            [edited(row, edits, self.history.after(drafts[:index])) for index, row in enumerate(logits)]
        )


def edited(logits: Tensor, edits: Edits, history: History) -> Tensor:
    """fp32 [V]: logits [V] after stages 1 to 6, in that order; -inf where an id is banned.

    NaN and +inf stay as they are, so that a broken row is still seen to be broken.
    """
    original = logits.to(torch.float32)
    row = biased(original, edits)
    if len(history.output) < edits.min_tokens:
        row = ban(row, history.stop_ids)
    row = penalised(row, edits, history)
    row = ban(row, banned_words(edits.bad_words, (*history.prompt, *history.output)))
    if history.grammar is not None:
        row = torch.where(history.grammar(history.output), row, -math.inf)
    forced = None if edits.thinking is None else forced_token(edits.thinking, history.output)
    if forced is not None:
        row = torch.full_like(row, -math.inf)
        row[forced] = 0.0
    return torch.where(torch.isnan(original) | torch.isposinf(original), original, row)


def biased(row: Tensor, edits: Edits) -> Tensor:
    """Stage 1."""
    row = row.clone()
    for token, addend in edits.logit_bias:
        row[token] += addend
    if edits.allowed_ids is None:
        return row
    allowed = torch.zeros(row.shape, dtype=torch.bool)
    allowed[list(edits.allowed_ids)] = True
    return torch.where(allowed, row, -math.inf)


def penalised(row: Tensor, edits: Edits, history: History) -> Tensor:
    """Stage 3 (verify_sampling 5): the prompt counts for repetition only."""
    counts = torch.bincount(torch.tensor(history.output, dtype=torch.int64), minlength=row.numel())
    seen = counts > 0
    seen[list(history.prompt)] = True
    repetition, frequency, presence = (
        torch.tensor(value, dtype=torch.float32)
        for value in (edits.repetition_penalty, edits.frequency_penalty, edits.presence_penalty)
    )
    row = torch.where(seen, torch.where(row > 0, row / repetition, row * repetition), row)
    return row - frequency * counts - presence * (counts > 0)


def banned_words(words: Sequence[tuple[int, ...]], tokens: tuple[int, ...]) -> list[int]:
    """Stage 4: the last ids of the words whose other ids end `tokens`."""
    return [word[-1] for word in words if tokens[len(tokens) - len(word) + 1 :] == word[:-1]]


def ban(row: Tensor, ids: Sequence[int]) -> Tensor:
    """-inf at these ids."""
    row = row.clone()
    row[list(ids)] = -math.inf
    return row


def forced_token(thinking: ThinkingBudget, output: tuple[int, ...]) -> int | None:
    """Stage 6: the next id of `end` once the budget is spent, unless `end` stands within the budget."""
    place = len(output) - thinking.tokens
    if not 0 <= place < len(thinking.end):
        return None
    thought, length = output[: thinking.tokens], len(thinking.end)
    if any(thought[i : i + length] == thinking.end for i in range(len(thought) - length + 1)):
        return None
    return thinking.end[place]
