"""The joint law of a verify by exact integration of its random numbers (verify_sampling 12).

A verify is a black box from drafts, logits, draft laws and uniforms to tokens. Every draft path is walked;
accept intervals and the steps of the last draw are bisected on the lattice of multiples of 2**-24.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ft.contracts.law.exact import Setup
from ft.reference.types import Verification

LATTICE = 2**24
GRID = 8


@dataclass(frozen=True)
class Paths:
    """N draft paths. weight: probability of the path. counts: how many of its k drafts are real.

    drafts [N, k], counts [N], logits [N, k+1, V], candidates [N, k, K], weight fp64 [N]; q [N, k, K] is what
    the verify is told, true_q [N, k, K] what the walk used.
    """

    drafts: Tensor
    counts: Tensor
    logits: Tensor
    candidates: Tensor
    q: Tensor
    true_q: Tensor
    weight: Tensor

    def take(self, index: NDArray[np.int64]) -> "Paths":
        return Paths(*(getattr(self, field.name)[torch.from_numpy(index)] for field in fields(self)))

    @property
    def vocabulary(self) -> int:
        return self.logits.shape[-1]

    @property
    def width(self) -> int:
        return self.logits.shape[1]


Box = Callable[[Paths, Tensor, Tensor], Tensor]
"""(paths, coins fp32 [N, k], final fp32 [N]) -> emitted int64 [N, k+1], padded with -1."""


class Model:
    """A tiny target and draft: random tables over prefixes, normal logits of deviation 2."""

    def __init__(
        self, seed: int, vocabulary: int, drafts: int, candidates: int, duplicates: bool = False
    ) -> None:
        self.seed, self.vocabulary, self.drafts, self.candidates = seed, vocabulary, drafts, candidates
        self.duplicates = duplicates

    def logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        rng = np.random.default_rng([self.seed, 1, *prefix])
        return (2 * rng.standard_normal(self.vocabulary)).astype(np.float32)

    def draft_law(self, prefix: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Candidates [K] and q fp32 [K]; with duplicates the first two candidates are the same id."""
        rng = np.random.default_rng([self.seed, 2, *prefix])
        ids = rng.permutation(self.vocabulary)[: self.candidates]
        if self.duplicates:
            ids[1] = ids[0]
        score = torch.from_numpy(rng.standard_normal(self.candidates).astype(np.float32))
        return ids, torch.softmax(1.5 * score, 0).numpy()

    def paths(
        self, counts: Sequence[int], tell: Callable[[int, Tensor], Tensor] | None = None, greedy: bool = False
    ) -> Paths:
        """Every draft path for each count; `tell(row, q)` makes what the verify is told of the draft law."""
        rows = []
        for count in counts:
            for columns in itertools.product(range(self.candidates), repeat=count):
                rows.append(self._path(columns, greedy))
        stacked = [torch.stack([torch.as_tensor(row[part]) for row in rows]) for part in range(6)]
        drafts, real, logits, candidates, q, weight = stacked
        told = q if tell is None else torch.stack([tell(row, q[:, row]) for row in range(self.drafts)], dim=1)
        paths = Paths(drafts, real, logits, candidates, told, q, weight)
        return paths.take(np.flatnonzero(weight.numpy() > 0))

    def _path(self, columns: Sequence[int], greedy: bool) -> tuple[object, ...]:
        drafts, weight = np.zeros(self.drafts, np.int64), 1.0
        logits = np.stack([self.logits(())] * (self.drafts + 1))
        candidates = np.zeros((self.drafts, self.candidates), np.int64)
        q = np.zeros((self.drafts, self.candidates), np.float32)
        for row in range(self.drafts):
            candidates[row], q[row] = self.draft_law(drafts[:row].tolist())
            column = columns[row] if row < len(columns) else 0
            drafts[row] = candidates[row, column]
            logits[row + 1] = self.logits(drafts[: row + 1].tolist())
            if row < len(columns):
                total = q[row].astype(np.float64).sum()
                share = float(column == q[row].argmax()) if greedy else q[row, column] / total
                weight *= share
        return drafts, len(columns), logits, candidates, q, np.float64(weight)

    def target(self, length: int, setup: Setup) -> NDArray[np.float64]:
        """The law [V, ...] of the next `length` tokens, from the definition."""
        joint = np.ones((self.vocabulary,) * length)
        for prefix in itertools.chain.from_iterable(
            itertools.product(range(self.vocabulary), repeat=depth) for depth in range(length)
        ):
            law = np.array(setup.law(self.logits(prefix).tolist(), prefix))
            joint[prefix] *= law.reshape(-1, *(1,) * (length - len(prefix) - 1))
        return joint


def joint_laws(box: Box, paths: Paths, model: Model, setup: Setup) -> dict[int, NDArray[np.float64]]:
    """For each count, the joint law [V, ...] of k+1 tokens: the emitted run, continued by the target's law."""
    mode = setup.sampling.mode()
    stops = stop_measures(accept_measures(box, paths, mode), paths.counts.tolist(), mode)
    width, vocabulary = paths.width, paths.vocabulary
    result = {int(count): np.zeros((vocabulary,) * width) for count in paths.counts}
    pairs, reach = [], []
    for path, count in enumerate(paths.counts.tolist()):
        for accepted in range(count + 1):
            chance = float(paths.weight[path]) * stops[path, accepted]
            if chance > 0:
                pairs.append((path, accepted))
                reach.append(chance)
    tokens = token_measures(box, paths, np.array(pairs), mode)
    for (path, accepted), chance, measure in zip(pairs, reach, tokens, strict=True):
        drafts = paths.drafts[path, :accepted].tolist()
        for token in np.flatnonzero(measure):
            prefix = (*drafts, int(token))
            rest = continuation(model, prefix, width, setup)
            result[int(paths.counts[path])][prefix] += chance * measure[token] * rest
    return result


def continuation(
    model: Model, prefix: tuple[int, ...], width: int, setup: Setup
) -> NDArray[np.float64] | float:
    """The target's law of the tokens after `prefix` up to `width` tokens."""
    if len(prefix) == width:
        return 1.0
    law = np.array(setup.law(model.logits(prefix).tolist(), prefix))
    parts = [p * continuation(model, (*prefix, token), width, setup) for token, p in enumerate(law)]
    return np.stack(parts) if len(prefix) + 1 < width else np.array(parts)


def accept_measures(box: Box, paths: Paths, mode: Verification) -> NDArray[np.float64]:
    """[N, k]: the measure of coins that accept draft i, the others being as `coins_that_accept` says."""
    drafts = paths.width - 1
    path, row = (part.reshape(-1) for part in np.indices((len(paths.counts), drafts)))
    low, high = np.zeros(len(path), np.int64), np.full(len(path), LATTICE)
    for _ in range(25):
        middle = np.minimum((low + high) // 2, LATTICE - 1)
        coins = coins_that_accept(row, drafts, mode)
        coins[np.arange(len(path)), row] = middle / LATTICE
        emitted = box(paths.take(path), torch.from_numpy(coins), torch.full((len(path),), 0.5)).numpy()
        accepted = emitted[np.arange(len(path)), row + 1] != -1
        open_ = low < high
        low = np.where(open_ & accepted, middle + 1, low)
        high = np.where(open_ & ~accepted, middle, high)
    return (low / LATTICE).reshape(-1, drafts)


def coins_that_accept(count: NDArray[np.int64], drafts: int, mode: Verification) -> NDArray[np.float32]:
    """[N, k]: coins that accept `count` drafts: 0 for all of these token by token, for the last alone in block
    verification, where the coins before it must not matter; the largest coin for the others."""
    place, last = np.arange(drafts), count[:, None]
    passes = place == last - 1 if mode == Verification.BLOCK else place < last
    return np.where(passes, 0.0, (LATTICE - 1) / LATTICE).astype(np.float32)


def stop_measures(
    accept: NDArray[np.float64], counts: Sequence[int], mode: Verification
) -> NDArray[np.float64]:
    """[N, k + 1]: the measure of coins that accept exactly n drafts, from those of each coin.

    Token by token the first coin that fails decides; in block verification the last one that passes.
    """
    stops = np.zeros((len(counts), accept.shape[1] + 1))
    for path, count in enumerate(counts):
        passes = accept[path, :count]
        for n in range(count + 1):
            if mode == Verification.BLOCK:
                stops[path, n] = (passes[n - 1] if n else 1.0) * np.prod(1.0 - passes[n:])
            else:
                stops[path, n] = np.prod(passes[:n]) * (1.0 - passes[n] if n < count else 1.0)
    return stops


def token_measures(
    box: Box, paths: Paths, pairs: NDArray[np.int64], mode: Verification
) -> NDArray[np.float64]:
    """[pairs, V]: the measure of each last token over the final uniform, for (path, accepted) pairs."""

    def tokens(pair: NDArray[np.int64], point: NDArray[np.int64]) -> NDArray[np.int64]:
        path, accepted = pairs[pair].T
        coins = coins_that_accept(accepted, paths.width - 1, mode)
        final = torch.from_numpy((point / LATTICE).astype(np.float32))
        emitted = box(paths.take(path), torch.from_numpy(coins), final).numpy()
        assert ((emitted != -1).sum(1) == accepted + 1).all(), "the run has another length than its coins say"
        return np.asarray(emitted[np.arange(len(path)), accepted])

    measure = np.zeros((len(pairs), paths.vocabulary))
    points = np.append(np.arange(GRID) * (LATTICE // GRID), LATTICE - 1)
    pair = np.repeat(np.arange(len(pairs)), GRID)
    low, high = np.tile(points[:-1], len(pairs)), np.tile(points[1:], len(pairs))
    at_low, at_high = tokens(pair, low), tokens(pair, high)
    np.add.at(measure, (pair[GRID - 1 :: GRID], at_high[GRID - 1 :: GRID]), 1)
    while len(pair):
        done = (at_low == at_high) | (high - low == 1)
        np.add.at(measure, (pair[done], at_low[done]), (high - low)[done])
        pair, low, high, at_low, at_high = (part[~done] for part in (pair, low, high, at_low, at_high))
        if not len(pair):
            break
        middle = (low + high) // 2
        at_middle = tokens(pair, middle)
        pair = np.concatenate([pair, pair])
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        at_low, at_high = np.concatenate([at_low, at_middle]), np.concatenate([at_middle, at_high])
    return measure / LATTICE


def total_variation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.abs(a - b).sum() / 2)
