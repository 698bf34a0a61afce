"""From the logits of one row to the law of its token (verify_sampling 2, stages 7 to 11).

Stages 1 to 6 (bias, minimum length, penalties, grammar) edit the logits before these functions see them,
for plain decoding and verification alike. One row at a time, fp32, with fp64 where masses are summed.
"""

import math

import torch
from torch import Tensor

from ft.reference.types import Sampling, Verification


def sanitised(logits: Tensor) -> tuple[Tensor, bool]:
    """A fp32 copy of logits [V] with NaN and +inf as -inf, and whether the row is broken (4.5).

    Broken: some entry was NaN or +inf, or no entry is finite. A broken row still decides a token.
    """
    row = logits.to(torch.float32)
    faulty = torch.isnan(row) | torch.isposinf(row)
    row = torch.where(faulty, -math.inf, row)
    return row, bool(faulty.any()) or bool(torch.isneginf(row).all())


def top_id(row: Tensor) -> int:
    """The lowest id among the largest entries of a sanitised row [V]; 0 when every entry is -inf."""
    return int(torch.argmax(row))


def drop_below_min_p(scores: Tensor, min_p: float) -> Tensor:
    """Stage 8 on scores [V] whose maximum is 0: drop those below ln(min_p)."""
    return torch.where(scores < torch.log(torch.tensor(min_p, dtype=torch.float32)), -math.inf, scores)


def keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Stage 9: keep the k largest of [V] and everything equal to the k-th. 0 keeps all."""
    if top_k == 0 or top_k >= scores.numel():
        return scores
    kth = torch.sort(scores, descending=True).values[top_k - 1]
    return torch.where(scores < kth, -math.inf, scores)


def keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Stage 10: in the order (larger first, lower id first), keep a token while the mass before it is < top_p.

    Mass is a share of the survivors' total; `top_p` counts as fp32; the first token is always kept.
    """
    if top_p >= 1.0:
        return scores
    ordered, ids = torch.sort(scores, descending=True, stable=True)
    mass = torch.exp(ordered).double()
    before = torch.cumsum(mass, 0) - mass
    keep = before < torch.tensor(top_p, dtype=torch.float32).double() * mass.sum()
    keep[0] = True
    return torch.full_like(scores, -math.inf).index_put((ids[keep],), ordered[keep])


def scores(row: Tensor, sampling: Sampling) -> Tensor:
    """log p up to a constant, fp32 [V], of a sanitised row: 0 at the maximum, -inf where p = 0.

    A row with no finite entry is a point mass at id 0.
    """
    if torch.isneginf(row).all():
        return torch.where(torch.arange(row.numel()) == 0, 0.0, -math.inf)
    scaled = row / torch.tensor(sampling.temperature, dtype=torch.float32)
    kept = drop_below_min_p(scaled - scaled.max(), sampling.min_p)
    kept = keep_top_k(kept, sampling.top_k)
    return keep_top_p(kept, sampling.top_p)


def law(logits: Tensor, sampling: Sampling) -> Tensor:
    """The law p fp32 [V] of the token that logits [V] decide; one-hot at `top_id` for a greedy request."""
    row, _ = sanitised(logits)
    if sampling.mode() == Verification.GREEDY:
        return torch.nn.functional.one_hot(torch.tensor(top_id(row)), row.numel()).float()
    weights = torch.exp(scores(row, sampling))
    return (weights.double() / weights.double().sum()).float()


def draw(mass: Tensor, u: Tensor) -> int:
    """The token of mass [V] at the uniform `u`: the first y with cdf(y) > u * total (4.4).

    `mass` is >= 0 and not all zero; the result is clamped to the last id with mass.
    """
    cdf = torch.cumsum(mass.double(), 0)
    token = torch.searchsorted(cdf, u.double() * cdf[-1], right=True)
    return min(int(token), int(torch.nonzero(mass)[-1]))
