"""How the drafts of one request are judged: greedy, coupled, rejection (verify_sampling 3, 4, 13).

Row r of a verify gives the law of the token at absolute index position + r, where `position` is C + 1;
that index also keys every random number. Draft r (counted from 0) is judged by row r.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ft.reference.random import gumbel, uniform
from ft.reference.sampling import draw, law, sanitised, scores, top_id
from ft.reference.types import Sampling, Stream, Verification

TOTAL_TOLERANCE = 1e-4
"""A row of q is trusted when its total is this close to 1; it is then renormalised, which is exact."""


@dataclass(frozen=True)
class Uniforms:
    """Random numbers put in from outside: one coin a draft and one final draw, each on [0, 1)."""

    coins: Sequence[float]
    final: float


@dataclass(frozen=True)
class Judged:
    """accepted: n. emitted: the n + 1 tokens of the run. broken: which of rows 0..n was broken (4.5)."""

    accepted: int
    emitted: tuple[int, ...]
    broken: tuple[bool, ...]


def verify(
    logits: Tensor,
    drafts: Sequence[int],
    sampling: Sampling,
    seed: int,
    position: int,
    candidates: Tensor | None = None,
    q: Tensor | None = None,
    uniforms: Uniforms | None = None,
) -> Judged:
    """Judge k drafts by logits [k + 1, V]. candidates int64 [k, K] and q fp32 [k, K], or None: point masses."""
    if logits.shape[0] != len(drafts) + 1:
        raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} rows of logits, got {logits.shape[0]}")
    if sampling.mode() == Verification.REJECTION:
        accepted, last = _reject(logits, drafts, sampling, seed, position, candidates, q, uniforms)
    else:
        accepted, last = _match(logits, drafts, sampling, seed, position)
    broken = tuple(sanitised(row)[1] for row in logits[: accepted + 1])
    return Judged(accepted, (*drafts[:accepted], last), broken)


def decide(logits: Tensor, sampling: Sampling, seed: int, position: int) -> int:
    """The token of a greedy or coupled row [V]: what it emits whatever was drafted."""
    row, _ = sanitised(logits)
    if sampling.mode() == Verification.GREEDY:
        return top_id(row)
    return top_id(scores(row, sampling) + gumbel(seed, position, row.numel()))


def _match(
    logits: Tensor, drafts: Sequence[int], sampling: Sampling, seed: int, position: int
) -> tuple[int, int]:
    """Accept drafts while they equal the row's own token; the first that differs is replaced by it."""
    for row, draft in enumerate(drafts):
        token = decide(logits[row], sampling, seed, position + row)
        if token != draft:
            return row, token
    return len(drafts), decide(logits[-1], sampling, seed, position + len(drafts))


def _reject(
    logits: Tensor,
    drafts: Sequence[int],
    sampling: Sampling,
    seed: int,
    position: int,
    candidates: Tensor | None,
    q: Tensor | None,
    uniforms: Uniforms | None,
) -> tuple[int, int]:
    """Accept draft x iff u * q(x) < p(x); after the first reject draw from max(0, p - q), else from p (4.1)."""

    def coin(row: int) -> Tensor:
        if uniforms is not None:
            return torch.tensor(uniforms.coins[row], dtype=torch.float32)
        return uniform(seed, position + row, Stream.COIN)[0]

    def final(row: int) -> Tensor:
        if uniforms is not None:
            return torch.tensor(uniforms.final, dtype=torch.float32)
        return uniform(seed, position + row, Stream.FINAL)[0]

    for row, draft in enumerate(drafts):
        p = law(logits[row], sampling)
        if candidates is None or q is None:
            density = point_mass(draft, p.numel())
        else:
            density = draft_density(draft, candidates[row], q[row], p.numel())
        if not bool(coin(row) * density[draft] < p[draft]):
            residual = torch.clamp(p - density, min=0.0)
            return row, draw(residual if residual.sum() > 0 else p, final(row))
    return len(drafts), draw(law(logits[-1], sampling), final(len(drafts)))


def draft_density(draft: int, candidates: Tensor, q: Tensor, vocabulary: int) -> Tensor:
    """q as a dense law fp32 [V]: equal candidates added up, total 1; a point mass if it is not trusted (4.3).

    Trusted: candidates in [0, V), q finite and nowhere negative, total within TOTAL_TOLERANCE of 1, and
    positive at the draft.
    """
    sound = torch.isfinite(q) & (q >= 0) & (candidates >= 0) & (candidates < vocabulary)
    if not sound.all():
        return point_mass(draft, vocabulary)
    density = torch.zeros(vocabulary, dtype=torch.float64).index_add(0, candidates, q.double())
    total = density.sum()
    if abs(float(total) - 1.0) > TOTAL_TOLERANCE or float(density[draft]) == 0.0:
        return point_mass(draft, vocabulary)
    return (density / total).float()


def point_mass(token: int, vocabulary: int) -> Tensor:
    """The law fp32 [V] that is 1 at `token`."""
    return torch.nn.functional.one_hot(torch.tensor(token), vocabulary).float()
