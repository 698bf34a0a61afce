"""The last token of requests that draw it: from row n = accepted, less the law of the draft rejected there.

Masses are shares p in units again, as a plain draw takes them: max(0, weight * p - q), or p where all drafts passed
or nothing is left. Drawn by cdf > u * total over tiles, then inside the tile, clamped to the last id with mass.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from ft.kernels.verify_law import COUPLED, GREEDY, UNIT, kept_mass, load_row, scores, share, whole, whole_wide
from ft.kernels.verify_noise import FINAL_STREAM, uniform


@triton.jit
def tile_shares(
    logits,
    temperature,
    floor,
    row_top,
    row_cut,
    row_total,
    request,
    row,
    ids,
    vocabulary,
):
    """p fp32 of the ids of a tile."""
    z, _ = load_row(logits + row.to(tl.int64) * vocabulary, ids, vocabulary)
    score = scores(z, ids, tl.load(temperature + request), tl.load(row_top + row))
    mass = kept_mass(score, ids, tl.load(floor + request), tl.load(row_cut + row))
    return share(mass, tl.load(row_total + row))


@triton.jit
def residual(p, ids, weight, law_id, law_q, draft, SLOTS: tl.constexpr):
    """max(0, weight * p - q) in units, with q of `draft`."""
    dense = p * 0.0
    for slot in range(SLOTS):
        place = draft.to(tl.int64) * SLOTS + slot
        dense = tl.where(ids == tl.load(law_id + place), tl.load(law_q + place), dense)
    left = tl.fma(p.to(tl.float64), weight, -dense.to(tl.float64))
    return whole_wide(tl.maximum(left, 0.0) * UNIT)


@triton.jit
def sums_kernel(
    logits,
    counts,
    temperature,
    mode,
    floor,
    row_top,
    row_cut,
    row_total,
    law_id,
    law_q,
    accepted,
    weights,
    sums,
    vocabulary,
    width,
    tiles,
    TILE: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Units of p and of what is left of it in each tile of row n, int64 [B, tiles, 2]. Grid [B, tiles]."""
    request = tl.program_id(0)
    tile = tl.program_id(1)
    how = tl.load(mode + request)
    if (how == GREEDY) | (how == COUPLED):
        return
    number = tl.load(accepted + request).to(tl.int32)
    row = request * width + number
    ids = tile * TILE + tl.arange(0, TILE)
    p = tile_shares(logits, temperature, floor, row_top, row_cut, row_total, request, row, ids, vocabulary)
    own = tl.sum(whole(p * UNIT))
    left = own * 0
    if (own > 0) & (number < tl.load(counts + request)):
        draft = request * (width - 1) + number
        left = tl.sum(residual(p, ids, tl.load(weights + request), law_id, law_q, draft, SLOTS))
    place = (request.to(tl.int64) * tiles + tile) * 2
    tl.store(sums + place, own)
    tl.store(sums + place + 1, left)


@triton.jit
def draw_kernel(
    logits,
    counts,
    temperature,
    seed,
    mode,
    positions,
    final,
    floor,
    row_top,
    row_cut,
    row_total,
    law_id,
    law_q,
    accepted,
    weights,
    sums,
    emitted,
    vocabulary,
    width,
    tiles,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    SLOTS: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """emitted [b, n]. `final` fp32 [B] is read where GIVEN, else the uniform is made here. Grid [B]."""
    request = tl.program_id(0)
    how = tl.load(mode + request)
    if (how == GREEDY) | (how == COUPLED):
        return
    number = tl.load(accepted + request).to(tl.int32)
    row = request * width + number
    if GIVEN:
        u = tl.load(final + request)
    else:
        first = tl.load(positions + request)
        u = uniform(tl.load(seed + request), first + number, FINAL_STREAM, first)
    places = tl.arange(0, TILES)
    start = (request.to(tl.int64) * tiles + places) * 2
    own = tl.load(sums + start, mask=places < tiles, other=0)
    left = tl.load(sums + start + 1, mask=places < tiles, other=0)
    subtract = tl.sum(left) > 0
    masses = tl.where(subtract, left, own)
    total = tl.sum(masses)
    bound = u.to(tl.float64) * total.to(tl.float64)
    cdf = tl.cumsum(masses, 0)
    tile = tl.minimum(
        tl.sum(((cdf.to(tl.float64) <= bound) & (places < tiles)).to(tl.int32)),
        tl.sum((cdf < total).to(tl.int32)),
    )
    earlier = tl.sum(tl.where(places < tile, masses, 0))
    ids = tile * TILE + tl.arange(0, TILE)
    p = tile_shares(logits, temperature, floor, row_top, row_cut, row_total, request, row, ids, vocabulary)
    mass = whole(p * UNIT)
    if subtract:
        draft = request * (width - 1) + number
        mass = residual(p, ids, tl.load(weights + request), law_id, law_q, draft, SLOTS)
    inner = earlier + tl.cumsum(mass, 0)
    reach = earlier + tl.sum(mass)
    place = tl.minimum(
        tl.sum((inner.to(tl.float64) <= bound).to(tl.int32)), tl.sum((inner < reach).to(tl.int32))
    )
    tl.store(emitted + row, (tile * TILE + place).to(tl.int64))
