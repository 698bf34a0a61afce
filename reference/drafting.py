"""How a draft token is chosen from draft logits, so that its verification stays exact (verify_sampling 4.6, 13)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ft.reference.edits import RequestLaw, edited
from ft.reference.random import uniform
from ft.reference.sampling import draw, law
from ft.reference.types import Sampling, Stream, Verification
from ft.reference.verify import decide

CANDIDATES = 256
"""A sampled draft keeps at most this many candidates."""


@dataclass(frozen=True)
class Choice:
    """A draft of one request. candidates int64 [K] and q fp32 [K]: the law it was drawn from; None: point mass."""

    token: int
    candidates: Tensor | None = None
    q: Tensor | None = None


class Chooser(Protocol):
    """What a proposer asks for each draft position."""

    def choose(
        self, logits: Tensor, positions: Tensor, slots: Tensor, drafted: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Tokens int64 [B], candidates int64 [B, K] | None, q fp32 [B, K] | None, from draft logits [B, V].

        positions: int64 [B], the absolute index of the token decided. slots: int64 [B]. drafted: int64 [B, r], the
        drafts of this step before this one.
        """
        ...


def choose_draft(logits: Tensor, sampling: Sampling, seed: int, position: int, step: int) -> Choice:
    """The draft for absolute index `position` from edited draft logits [V]; step: index of the step's first draft.

    Greedy and coupled requests draft what they would emit if the draft were the target, a point mass.
    Rejection and block draw from the request's own law of the draft logits, cut to its K likeliest ids (larger first,
    lower id first) and renormalised: without filters the softmax of the top K logits at its temperature.
    """
    if sampling.mode() in (Verification.GREEDY, Verification.COUPLED):
        return Choice(decide(logits, sampling, seed, position))
    p = law(logits, sampling)
    mass, ids = torch.sort(p, descending=True, stable=True)
    candidates, kept = ids[:CANDIDATES], mass[:CANDIDATES].double()
    q = (kept / kept.sum()).float()
    column = draw(q, uniform(seed, position, Stream.DRAFT, step))
    return Choice(int(candidates[column]), candidates, q)


@dataclass(frozen=True)
class DraftChooser:
    """Chooses drafts for requests by slot. Drafts see the edits that the target's rows will see."""

    requests: Mapping[int, RequestLaw]

    def choose(
        self, logits: Tensor, positions: Tensor, slots: Tensor, drafted: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See `Chooser`. A point mass beside sampled requests is one-hot q at its token, in column 0."""
        choices = []
        for row, position, slot, before in zip(logits, positions, slots, drafted, strict=True):
            law = self.requests[int(slot)]
            row = edited(row, law.sampling.edits, law.history.after(before.tolist()))
            step = int(position) - len(before)
            choices.append(choose_draft(row, law.sampling, law.seed, int(position), step))
        tokens = torch.tensor([choice.token for choice in choices], dtype=torch.int64)
        if all(choice.q is None for choice in choices):
            return tokens, None, None
        width = min(CANDIDATES, logits.shape[-1])
        candidates = tokens[:, None].repeat(1, width)
        q = torch.zeros(len(choices), width)
        q[:, 0] = 1.0
        for index, choice in enumerate(choices):
            if choice.candidates is not None and choice.q is not None:
                candidates[index], q[index] = choice.candidates, choice.q
        return tokens, candidates, q
