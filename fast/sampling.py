"""From logits to the law of a token, for B requests at once (verify_sampling 2, stages 7 to 11).

The rule of rows: every function takes one row a request, [B, V], and plain decoding calls the very function
that a verify calls for each of its rows. Masses are added as integers in units of 2**-40, so a sum has the
same bits in every order and beside any neighbours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ft.reference.types import Sampling, Verification

UNIT = 2.0**40
"""Masses per 1.0. 2**22 ids of mass 1 stay below 2**63."""

ALL_MODES = frozenset(Verification)


@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters of B requests on the device.

    temperature, top_p, min_p: fp32 [B]. top_k, seed, mode: int64 [B]; `seed` holds the 64 bits of the seed,
    `mode` a `Verification`. modes and filtered are the host's promise about the batch, fixed in a captured
    graph: only these modes occur, and whether any request sets top_k or top_p. They skip work and change no bit.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    mode: Tensor
    modes: frozenset[Verification] = ALL_MODES
    filtered: bool = True

    @classmethod
    def of(
        cls, samplings: Sequence[Sampling], seeds: Sequence[int], device: torch.device | str = "cpu"
    ) -> "SamplingRows":
        """Rows of validated requests; seeds: the seed of each for its lifetime, modulo 2**64."""

        def floats(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        def integers(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            temperature=floats([one.temperature for one in samplings]),
            top_k=integers([one.top_k for one in samplings]),
            top_p=floats([one.top_p for one in samplings]),
            min_p=floats([one.min_p for one in samplings]),
            seed=integers([signed(seed) for seed in seeds]),
            mode=integers([int(one.mode()) for one in samplings]),
            modes=frozenset(one.mode() for one in samplings),
            filtered=any(one.top_k > 0 or one.top_p < 1.0 for one in samplings),
        )

    def repeat(self, count: int) -> "SamplingRows":
        """Every request `count` times in a row, [B * count]: its rows as requests of their own."""
        names = ("temperature", "top_k", "top_p", "min_p", "seed", "mode")
        wide = {name: getattr(self, name)[:, None].expand(-1, count).reshape(-1) for name in names}
        return replace(self, **wide)


def signed(seed: int) -> int:
    """The int64 with the low 64 bits of `seed`."""
    return (seed + 2**63) % 2**64 - 2**63


def units(mass: Tensor) -> Tensor:
    """Masses in [0, 1] as int64 multiples of 2**-40."""
    return (mass.double() * UNIT).round().to(torch.int64)


def shares(mass: Tensor) -> Tensor:
    """int64 masses [B, N] as fp32 shares of their total; every row has mass."""
    return (mass.double() / mass.sum(-1, keepdim=True).double()).to(torch.float32)


def sanitised(logits: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 [B, V] with NaN and +inf as -inf, and bool [B]: rows with such an entry or with no finite one (4.5)."""
    row = logits.to(torch.float32).contiguous()
    faulty = torch.isnan(row) | torch.isposinf(row)
    row = torch.where(faulty, -math.inf, row)
    return row, faulty.any(-1) | torch.isneginf(row).all(-1)


def top_id(row: Tensor) -> Tensor:
    """int64 [B]: the lowest id among the largest entries of sanitised rows [B, V]."""
    return torch.argmax(row, dim=-1)


def scores(row: Tensor, rows: SamplingRows) -> Tensor:
    """log p up to a constant, fp32 [B, V], of sanitised rows: 0 at the maximum, -inf where p = 0.

    Greedy requests get temperature 1 here; their token is `top_id`. No finite entry: point mass at id 0.
    """
    temperature = torch.where(rows.mode == Verification.GREEDY, 1.0, rows.temperature)
    scaled = row / temperature[:, None]
    top = scaled.amax(-1, keepdim=True)
    first = torch.where(torch.arange(row.shape[-1], device=row.device) == 0, 0.0, -math.inf)
    kept = torch.where(torch.isneginf(top), first, scaled - top)
    kept = torch.where(kept < torch.log(rows.min_p)[:, None], -math.inf, kept)
    return keep_top(kept, rows) if rows.filtered else kept


def keep_top(kept: Tensor, rows: SamplingRows) -> Tensor:
    """Top-k, then top-p, on scores fp32 [B, V], by one sort: larger first, lower id first.

    Values equal to the k-th stay; a token stays while the share of mass before it is < top_p.
    """
    width = kept.shape[-1]
    ordered, ids = torch.sort(kept, dim=-1, descending=True, stable=True)
    last = torch.where(rows.top_k == 0, width, rows.top_k).clamp(max=width) - 1
    kth = ordered.gather(1, last[:, None])
    mass = units(torch.exp(torch.where(ordered < kth, -math.inf, ordered)))
    before = torch.cumsum(mass, -1) - mass
    limit = rows.top_p.double()[:, None] * mass.sum(-1, keepdim=True).double()
    first = torch.arange(width, device=kept.device) == 0
    inside = (before.double() < limit) | (rows.top_p[:, None] >= 1.0) | first
    inside = torch.zeros_like(inside).scatter(1, ids, inside & (ordered >= kth))
    return torch.where(inside, kept, -math.inf)


def law(logits: Tensor, rows: SamplingRows) -> Tensor:
    """The law p fp32 [B, V] of the tokens that logits [B, V] decide; one-hot at `top_id` for greedy requests."""
    row, _ = sanitised(logits)
    p = shares(units(torch.exp(scores(row, rows))))
    ids = torch.arange(row.shape[-1], device=row.device)
    one_hot = (ids == top_id(row)[:, None]).to(torch.float32)
    return torch.where((rows.mode == Verification.GREEDY)[:, None], one_hot, p)


def draw(mass: Tensor, u: Tensor) -> Tensor:
    """int64 [B]: the first entry of int64 masses [B, N] with cdf > u * total, u fp32 [B] on [0, 1).

    Clamped to the last entry with mass; 0 where a row has none.
    """
    cdf = torch.cumsum(mass, -1)
    total = cdf[:, -1:]
    token = (cdf.double() <= u.double()[:, None] * total.double()).sum(-1)
    return torch.minimum(token, (cdf < total).sum(-1))
