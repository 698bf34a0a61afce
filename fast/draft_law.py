"""The sparse law that a draft was drawn from, made fit for judging (verify_sampling 4.2, 4.3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ft.fast.sampling import UNIT, units

TOTAL_TOLERANCE = 1e-4
"""A row of q is trusted when its total is this close to 1; it is then renormalised, which is exact."""


@dataclass(frozen=True)
class DraftLaw:
    """q of drafts [B, k]. ids: int64 [B, k, N]. q: fp32 [B, k, N], total 1; equal ids all hold their sum.

    first: bool [B, k, N], the first of equal ids, so that sums over ids take each once. at_draft: fp32 [B, k], q of the
    draft itself.
    """

    ids: Tensor
    q: Tensor
    first: Tensor
    at_draft: Tensor


def law_of_drafts(drafts: Tensor, candidates: Tensor | None, q: Tensor | None, vocabulary: int) -> DraftLaw:
    """The laws told, candidates and q [B, k, K], where trusted, else point masses at drafts int64 [B, k].

    Trusted: candidates in [0, V), q finite and nowhere negative, total within TOTAL_TOLERANCE of 1, and
    positive at the draft.
    """
    one = torch.ones_like(drafts, dtype=torch.float32)
    if candidates is None or q is None:
        return DraftLaw(drafts[..., None], one[..., None], one[..., None] > 0, one)
    sound = torch.isfinite(q) & (q >= 0) & (q <= 2) & (candidates >= 0) & (candidates < vocabulary)
    mass = units(torch.where(sound, q, 0.0))
    total = mass.sum(-1, keepdim=True)
    equal = candidates[..., :, None] == candidates[..., None, :]
    merged = torch.where(equal, mass[..., None, :], 0).sum(-1)
    drawn = torch.where(candidates == drafts[..., None], merged, 0).amax(-1, keepdim=True)
    close = (total - int(UNIT)).abs() <= int(TOTAL_TOLERANCE * UNIT)
    trusted = sound.all(-1, keepdim=True) & close & (drawn > 0)
    divisor = total.clamp(min=1).double()
    place = torch.arange(q.shape[-1], device=q.device)
    earlier = equal & (place < place[:, None])
    return DraftLaw(
        torch.where(trusted, candidates, drafts[..., None]),
        torch.where(trusted, (merged.double() / divisor).to(torch.float32), 1.0),
        torch.where(trusted, ~earlier.any(-1), place == 0),
        torch.where(trusted, (drawn.double() / divisor).to(torch.float32), 1.0)[..., 0],
    )
