"""How the drafts of one request are judged: greedy, coupled, rejection, block (verify_sampling 3, 4, 13).

Row r of a verify gives the law of the token at absolute index position + r, where `position` is C + 1;
that index keys every random number, and `position` keys the step. Draft r (counted from 0) is judged by row r.
Logits are those of `edits.RequestLaw.rows`.
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
    """accepted: n. emitted: the n + 1 tokens of the run. broken: which of rows 0..n was decided by a broken row (4.5):
    itself, or any row of the step in block verification, which looks at them all."""

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
    if sampling.mode() in (Verification.GREEDY, Verification.COUPLED):
        accepted, last = _match(logits, drafts, sampling, seed, position)
    else:
        p = [law(row, sampling) for row in logits]
        q_rows = draft_densities(drafts, candidates, q, logits.shape[-1])
        draws = Draws(seed, position, uniforms)
        judge = _reject if sampling.mode() == Verification.REJECTION else _judge_block
        accepted, last = judge(p, q_rows, drafts, draws)
    broken = [sanitised(row)[1] for row in logits]
    if sampling.mode() == Verification.BLOCK and any(broken):
        broken = [True] * len(broken)
    return Judged(accepted, (*drafts[:accepted], last), tuple(broken[: accepted + 1]))


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


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step, fp32 on [0, 1): its own or those put in."""

    seed: int
    position: int
    given: Uniforms | None = None

    def coin(self, row: int) -> Tensor:
        if self.given is not None:
            return torch.tensor(self.given.coins[row], dtype=torch.float32)
        return uniform(self.seed, self.position + row, Stream.COIN, self.position)

    def final(self, row: int) -> Tensor:
        if self.given is not None:
            return torch.tensor(self.given.final, dtype=torch.float32)
        return uniform(self.seed, self.position + row, Stream.FINAL, self.position)


def _reject(p: Sequence[Tensor], q: Sequence[Tensor], drafts: Sequence[int], draws: Draws) -> tuple[int, int]:
    """Accept draft x iff u * q(x) < p(x); after the first reject draw from max(0, p - q), else from p (4.1)."""
    for row, draft in enumerate(drafts):
        if not bool(draws.coin(row) * q[row][draft] < p[row][draft]):
            return row, draw(residual(p[row], q[row]), draws.final(row))
    return len(drafts), draw(p[-1], draws.final(len(drafts)))


def _judge_block(
    p: Sequence[Tensor], q: Sequence[Tensor], drafts: Sequence[int], draws: Draws
) -> tuple[int, int]:
    """Block verification (13; Sun et al., arXiv 2403.10444): the longest prefix whose coin passes is accepted."""
    weight, accepted, kept = torch.ones((), dtype=torch.float64), 0, torch.ones((), dtype=torch.float64)
    for row, draft in enumerate(drafts):
        ratio = p[row][draft].double() / q[row][draft].double()
        weight = torch.minimum(weight * ratio, torch.ones(()))
        passes = weight
        if row + 1 < len(drafts):
            left = torch.clamp(weight * p[row + 1].double() - q[row + 1].double(), min=0.0).sum()
            passes = torch.where(weight == 1.0, 1.0, left / (left + 1.0 - weight))
        if draws.coin(row).double() < passes:
            accepted, kept = row + 1, weight
    if accepted == len(drafts):
        return accepted, draw(p[-1], draws.final(accepted))
    scaled = kept * p[accepted].double()
    left = torch.clamp(scaled - q[accepted].double(), min=0.0)
    return accepted, draw(left if left.sum() > 0 else p[accepted], draws.final(accepted))


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q) [V], or p again where no mass is left."""
    left = torch.clamp(p.double() - q.double(), min=0.0)
    return left if left.sum() > 0 else p


def draft_densities(
    drafts: Sequence[int], candidates: Tensor | None, q: Tensor | None, vocabulary: int
) -> list[Tensor]:
    """The law fp32 [V] that each draft is judged by; point masses where none is told."""
    if candidates is None or q is None:
        return [point_mass(draft, vocabulary) for draft in drafts]
    return [draft_density(draft, candidates[row], q[row], vocabulary) for row, draft in enumerate(drafts)]


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
