"""The cut of a row: the least key that top-k and top-p keep, and the mass kept.

Top-k keeps the k largest scores and what equals the k-th; top-p, on what is left, keeps a key while the mass of the
larger keys is below top_p of the whole, and the first always. The candidates decide it where they are enough;
otherwise `slow_kernel` bisects over the whole row, as exactly.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from ft.kernels.verify_law import (
    ID_BITS,
    ID_MASK,
    INFINITY,
    KEY_LIMIT,
    SCORE_TOP,
    is_sampled_row,
    keys_of,
    load_row,
    mass_of,
    mass_of_key,
    scores,
)


@triton.jit
def limit_of(fraction, mass):
    """Mass before a kept key stays below this, fp64. No less than 1/2: the first key has nothing before it."""
    limit = tl.maximum(fraction.to(tl.float64) * mass.to(tl.float64), 0.5)
    return tl.where(fraction >= 1.0, INFINITY, limit)


@triton.jit
def rank_kernel(
    mode,
    counts,
    filled,
    keys,
    ranks,
    before,
    width,
    CAPACITY: tl.constexpr,
    CHUNK: tl.constexpr,
    STEP: tl.constexpr,
):
    """How many candidates are larger, and their mass, for each candidate. Grid [rows, CAPACITY // CHUNK]."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    if is_sampled_row(row, width, counts, mode):
        held = tl.load(filled + row)
        if (chunk * CHUNK < held) & (held <= CAPACITY):
            base = row.to(tl.int64) * CAPACITY
            own = chunk * CHUNK + tl.arange(0, CHUNK)
            key = tl.load(keys + base + own, mask=own < held, other=0)
            rank = tl.zeros([CHUNK], tl.int32)
            mass = tl.zeros([CHUNK], tl.int64)
            first = 0
            while first < held:
                slots = first + tl.arange(0, STEP)
                other = tl.load(keys + base + slots, mask=slots < held, other=0)
                weight = mass_of_key(other)
                larger = other[None, :] > key[:, None]
                rank += tl.sum(larger.to(tl.int32), axis=1)
                mass += tl.sum(tl.where(larger, weight[None, :], 0), axis=1)
                first += STEP
            tl.store(ranks + base + own, rank, mask=own < held)
            tl.store(before + base + own, mass, mask=own < held)


@triton.jit
def cut_kernel(
    top_k,
    top_p,
    mode,
    counts,
    tile_mass,
    tile_alive,
    filled,
    keys,
    ranks,
    before,
    row_cut,
    row_total,
    row_slow,
    width,
    tiles,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """row_cut and row_total by the candidates; row_slow where they are not enough. Grid [rows]."""
    row = tl.program_id(0)
    if is_sampled_row(row, width, counts, mode):
        request = row // width
        places = tl.arange(0, TILES)
        start = row.to(tl.int64) * tiles
        total = tl.sum(tl.load(tile_mass + start + places, mask=places < tiles, other=0))
        cut = total * 0
        slow = 0
        if FILTERED:
            k = tl.load(top_k + request)
            fraction = tl.load(top_p + request)
            alive = tl.sum(tl.load(tile_alive + start + places, mask=places < tiles, other=0))
            by_rank = (k > 0) & (k < alive)
            if by_rank | (fraction < 1.0):
                held = tl.load(filled + row)
                base = row.to(tl.int64) * CAPACITY
                slots = tl.arange(0, CAPACITY)
                real = slots < held
                key = tl.load(keys + base + slots, mask=real, other=0)
                rank = tl.load(ranks + base + slots, mask=real, other=CAPACITY)
                larger = tl.load(before + base + slots, mask=real, other=0)
                mass = mass_of_key(key)
                level = tl.max(tl.where(real & by_rank & (rank == k - 1), key >> ID_BITS, 0))
                stays = real & ((key >> ID_BITS) >= level)
                inside = tl.sum(tl.where(stays, mass, 0))
                limit = limit_of(fraction, tl.where(by_rank, inside, total))
                enough = (held == alive) | tl.where(by_rank, held >= k, inside.to(tl.float64) >= limit)
                kept = stays & (larger.to(tl.float64) < limit)
                cut = tl.min(tl.where(kept, key, KEY_LIMIT))
                total = tl.sum(tl.where(kept, mass, 0))
                slow = 1 - (enough & (held <= CAPACITY)).to(tl.int32)
        tl.store(row_cut + row, cut)
        tl.store(row_total + row, total)
        tl.store(row_slow + row, slow)


@triton.jit
def above(base, ids, temperature, top, floor, key, VOCABULARY: tl.constexpr):
    """Scores at `ids`, and which of them min-p keeps and lie above `key`."""
    z, _ = load_row(base, ids, VOCABULARY)
    score = scores(z, ids, temperature, top)
    return score, (score >= floor) & (score > -INFINITY) & (keys_of(score, ids) > key)


@triton.jit
def number_above(base, temperature, top, floor, key, VOCABULARY: tl.constexpr, WIDE: tl.constexpr):
    """Number of a row's ids above `key`."""
    number = tl.zeros([WIDE], tl.int32)
    for first in range(0, VOCABULARY, WIDE):
        ids = first + tl.arange(0, WIDE)
        _, counted = above(base, ids, temperature, top, floor, key, VOCABULARY)
        number += counted.to(tl.int32)
    return tl.sum(number)


@triton.jit
def mass_above(base, temperature, top, floor, key, VOCABULARY: tl.constexpr, WIDE: tl.constexpr):
    """Mass of a row's ids above `key`."""
    mass = tl.zeros([WIDE], tl.int64)
    for first in range(0, VOCABULARY, WIDE):
        ids = first + tl.arange(0, WIDE)
        score, counted = above(base, ids, temperature, top, floor, key, VOCABULARY)
        mass += tl.where(counted, mass_of(score), 0)
    return tl.sum(mass)


@triton.jit
def slow_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    mode,
    counts,
    floor,
    row_top,
    row_cut,
    row_total,
    row_slow,
    width,
    VOCABULARY: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Cut and mass of rows whose candidates were not enough, by bisection. Grid [rows].

    First the level of score of the k-th, then the least level that top-p reaches, then ids where it splits equals.
    """
    row = tl.program_id(0)
    if is_sampled_row(row, width, counts, mode):  # noqa: SIM102
        if tl.load(row_slow + row) != 0:
            request = row // width
            base = logits + row.to(tl.int64) * VOCABULARY
            heat = tl.load(temperature + request)
            top = tl.load(row_top + row)
            least = tl.load(floor + request)
            k = tl.load(top_k + request)
            low = k * 0
            high = low + SCORE_TOP + 1
            if k == 0:
                high = low + 1
            while high - low > 1:
                middle = (low + high) >> 1
                number = number_above(base, heat, top, least, (middle << ID_BITS) - 1, VOCABULARY, WIDE)
                fits = number >= k
                low = tl.where(fits, middle, low)
                high = tl.where(fits, high, middle)
            mass = mass_above(base, heat, top, least, (low << ID_BITS) - 1, VOCABULARY, WIDE)
            limit = limit_of(tl.load(top_p + request), mass)
            below = low - 1
            high = low * 0 + SCORE_TOP
            if limit == INFINITY:
                high = low
            while high - below > 1:
                middle = (below + high) >> 1
                larger = mass_above(base, heat, top, least, (middle << ID_BITS) | ID_MASK, VOCABULARY, WIDE)
                fits = larger.to(tl.float64) < limit
                high = tl.where(fits, middle, high)
                below = tl.where(fits, below, middle)
            below = (high << ID_BITS) - 1
            high = (high << ID_BITS) | ID_MASK
            reached = number_above(base, heat, top, least, below, VOCABULARY, WIDE)
            beyond = number_above(base, heat, top, least, high, VOCABULARY, WIDE)
            if (reached - beyond == 1) | (limit == INFINITY):
                high = below + 1
            while high - below > 1:
                middle = (below + high) >> 1
                larger = mass_above(base, heat, top, least, middle, VOCABULARY, WIDE)
                fits = larger.to(tl.float64) < limit
                high = tl.where(fits, middle, high)
                below = tl.where(fits, below, middle)
            mass = mass_above(base, heat, top, least, high - 1, VOCABULARY, WIDE)
            tl.store(row_cut + row, high)
            tl.store(row_total + row, mass)
