"""How draft tokens are chosen from draft logits, B requests at once (verify_sampling 4.6, 13)."""

import torch
from torch import Tensor

from ft.fast.random import uniform
from ft.fast.sampling import UNIT, SamplingRows, draw, shares, units
from ft.fast.verify import decide
from ft.reference.types import Stream, Verification

CANDIDATES = 256
"""A sampled draft keeps at most this many candidates."""

ID_BITS = 22
"""A sort key holds a mass of at most 2**40 above the token id: 62 bits."""


def choose_drafts(
    logits: Tensor, positions: Tensor, rows: SamplingRows, steps: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens int64 [B], candidates int64 [B, K] and q fp32 [B, K] from edited draft logits [B, V].

    positions: int64 [B], the absolute index of the token decided. steps: int64 [B], that of the step's first. Greedy and coupled requests draft what they
    would emit if the draft were the target: q is one-hot at column 0, which holds the token, and a one-hot q
    is judged as a point mass. Rejection and block draw from the request's own law of the draft logits, cut to its
    K = min(CANDIDATES, V) likeliest ids (larger first, lower id first) and renormalised. K is 1 when the batch has
    neither.
    """
    token, p, _ = decide(logits, rows, positions)
    if p is None:
        candidates = token[:, None]
        return token, candidates, torch.ones_like(candidates, dtype=torch.float32)
    candidates, mass = likeliest(units(p), min(CANDIDATES, p.shape[-1]))
    q = shares(mass)
    column = draw(units(q), uniform(rows.seed, positions, Stream.DRAFT, steps))
    drawn = candidates.gather(1, column[:, None])[:, 0]
    drawing = (rows.mode == Verification.REJECTION) | (rows.mode == Verification.BLOCK)
    point = (torch.arange(q.shape[1], device=q.device) == 0).to(torch.float32)
    return (
        torch.where(drawing, drawn, token),
        torch.where(drawing[:, None], candidates, token[:, None]),
        torch.where(drawing[:, None], q, point),
    )


def likeliest(mass: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and masses int64 [B, count] of the largest of int64 masses [B, V], larger first, lower id first.

    The id is part of the key, so that no two keys are equal and the choice depends on no order of work.
    """
    last = (1 << ID_BITS) - 1
    if mass.shape[-1] > last:
        raise ValueError(f"vocabulary of {mass.shape[-1]}; the draft choice packs ids below {last}")
    ids = torch.arange(mass.shape[-1], device=mass.device)
    keys = mass.clamp(max=int(UNIT)) << ID_BITS | (last - ids)
    top = torch.topk(keys, count, dim=-1, sorted=True).values
    return last - (top & last), top >> ID_BITS
