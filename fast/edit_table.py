"""Edits of every request slot in fixed buffers on the device; see `edits.EditRows` for what they mean."""

import torch
from torch import Tensor

from ft.fast.edits import UNUSED, EditRows
from ft.reference.types import Edits

MAX_IDS = 1024
"""Ids that logit_bias may change, and ids that allowed_ids may list."""

MAX_WORDS = 64
MAX_WORD_TOKENS = 16
"""Bad words of one request, and tokens of one word."""

MAX_END_TOKENS = 8
"""Tokens of the end of thinking."""


class EditTable:
    """One row a slot, the last row a sink for padding, whose edits change nothing."""

    def __init__(self, slots: int, device: torch.device) -> None:
        def ids(*shape: int) -> Tensor:
            return torch.full((slots + 1, *shape), UNUSED, dtype=torch.int64, device=device)

        def reals(value: float, *shape: int) -> Tensor:
            return torch.full((slots + 1, *shape), value, dtype=torch.float32, device=device)

        self.device = device
        self.repetition, self.frequency, self.presence = reals(1.0), reals(0.0), reals(0.0)
        self.min_tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.bias_ids, self.bias = ids(MAX_IDS), reals(0.0, MAX_IDS)
        self.allowed_ids = ids(MAX_IDS)
        self.limited = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        self.bad_words = ids(MAX_WORDS, MAX_WORD_TOKENS)
        self.thinking, self.thinking_end = ids(), ids(MAX_END_TOKENS)

    def admit(self, slot: int, edits: Edits) -> None:
        """Write a request's edits over those of the last one."""
        self.repetition[slot] = edits.repetition_penalty
        self.frequency[slot] = edits.frequency_penalty
        self.presence[slot] = edits.presence_penalty
        self.min_tokens[slot] = edits.min_tokens
        self._write(self.bias_ids[slot], [token for token, _ in edits.logit_bias])
        self.bias[slot] = 0.0
        if edits.logit_bias:
            addends = torch.tensor([addend for _, addend in edits.logit_bias], dtype=torch.float32)
            self.bias[slot, : len(addends)] = addends.to(self.device)
        self._write(self.allowed_ids[slot], edits.allowed_ids or ())
        self.limited[slot] = edits.allowed_ids is not None
        self.bad_words[slot] = UNUSED
        for index, word in enumerate(edits.bad_words):
            self.bad_words[slot, index, -len(word) :] = torch.tensor(word).to(self.device)
        self.thinking[slot] = UNUSED if edits.thinking is None else edits.thinking.tokens
        self._write(self.thinking_end[slot], () if edits.thinking is None else edits.thinking.end)

    def _write(self, row: Tensor, ids: tuple[int, ...] | list[int]) -> None:
        row.fill_(UNUSED)
        if ids:
            row[: len(ids)] = torch.tensor(ids, dtype=torch.int64).to(self.device)

    def rows(self, slots: Tensor, stop_ids: Tensor) -> EditRows:
        """Rows of `slots` [B]."""
        return EditRows(
            repetition=self.repetition[slots],
            frequency=self.frequency[slots],
            presence=self.presence[slots],
            min_tokens=self.min_tokens[slots],
            stop_ids=stop_ids,
            bias_ids=self.bias_ids[slots],
            bias=self.bias[slots],
            allowed_ids=self.allowed_ids[slots],
            limited=self.limited[slots],
            bad_words=self.bad_words[slots],
            thinking=self.thinking[slots],
            thinking_end=self.thinking_end[slots],
        )


def check_edits(edits: Edits, vocabulary: int) -> None:
    """ValueError when edits do not fit the table or name an id outside [0, V); the message names the limit."""
    lists = {
        "logit_bias": [token for token, _ in edits.logit_bias],
        "allowed_token_ids": edits.allowed_ids or (),
    }
    words = [token for word in edits.bad_words for token in word]
    end = () if edits.thinking is None else edits.thinking.end
    for name, ids in {**lists, "bad_words": words, "thinking end": end}.items():
        wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise ValueError(f"{name} has the token id {wrong}; ids are 0..{vocabulary - 1}")
    for name, ids in lists.items():
        if len(ids) > MAX_IDS:
            raise ValueError(f"{name} has {len(ids)} ids; at most {MAX_IDS} are held on the device")
    if len(edits.bad_words) > MAX_WORDS:
        raise ValueError(
            f"bad_words has {len(edits.bad_words)} words; at most {MAX_WORDS} are held on the device"
        )
    longest = max(map(len, edits.bad_words), default=0)
    if longest > MAX_WORD_TOKENS:
        raise ValueError(f"bad_words has a word of {longest} tokens; at most {MAX_WORD_TOKENS} are held")
    if len(end) > MAX_END_TOKENS:
        raise ValueError(f"the end of thinking has {len(end)} tokens; at most {MAX_END_TOKENS} are held")
