"""A grammar of the contracts: a rule over the output in one line of Python, as masks for the engine and for the
reference."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


def may_follow(output: Sequence[int], token: int) -> bool:
    """Never the token before it, and of each three tokens the last is divisible by 3."""
    return token not in output[-1:] and (len(output) % 3 != 2 or token % 3 == 0)


def allowed(output: Sequence[int], vocabulary: int) -> Tensor:
    """bool [V]."""
    return torch.tensor([may_follow(output, token) for token in range(vocabulary)])


@dataclass
class RuleGrammar:
    """Implements fast.request.Grammar. asked: how many rows the engine has asked for."""

    vocabulary: int
    output: list[int] = field(default_factory=list)
    asked: int = 0

    def row(self, drafts: Sequence[int]) -> Tensor:
        self.asked += 1
        text = list(self.output)
        for token in drafts:
            if not may_follow(text, token):
                return packed(torch.ones(self.vocabulary, dtype=torch.bool))
            text.append(token)
        return packed(allowed(text, self.vocabulary))

    def accept(self, tokens: Sequence[int]) -> bool:
        for token in tokens:
            if not may_follow(self.output, token):
                return False
            self.output.append(token)
        return True


def packed(mask: Tensor) -> Tensor:
    """bool [V] as int32 [ceil(V / 32)], bit v % 32 of word v // 32."""
    words = torch.zeros(-(-mask.numel() // 32), dtype=torch.int64)
    ids = torch.nonzero(mask)[:, 0]
    words.index_add_(0, ids // 32, 1 << (ids % 32))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
