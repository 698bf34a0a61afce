"""Grammar masks of one step: the host's matchers asked row by row, the answers kept on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ft.fast.request import Grammar


class GrammarMasks:
    """Implements edits.MaskSource for requests in batch order, padded to `requests`; those without a grammar may emit
    anything. A row is asked for by the draft walk and again by the verify, so answers are kept."""

    def __init__(
        self, grammars: Sequence[Grammar | None], requests: int, vocabulary: int, device: torch.device
    ) -> None:
        self.grammars = [*grammars, *[None] * (requests - len(grammars))]
        self.words = -(-vocabulary // 32)
        self.device = device
        self._known: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    def row(self, drafts: Tensor) -> Tensor:
        """See edits.MaskSource. Waits for the drafts."""
        walked = tuple(tuple(row) for row in drafts.tolist())
        if walked not in self._known:
            masks = torch.full((len(self.grammars), self.words), -1, dtype=torch.int32)
            for index, (grammar, before) in enumerate(zip(self.grammars, walked, strict=True)):
                if grammar is not None:
                    masks[index] = grammar.row(before)
            self._known[walked] = masks.to(self.device)
        return self._known[walked]
