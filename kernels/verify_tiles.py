"""First looks at every row: tops of tiles, top of the row, masses, and the candidates of its cut.

A candidate is an id at or above the row's `edge`, a value of which the top-k provably, or the top-p probably, lies
inside. Candidates are gathered in any order: their keys are unique and are ranked later.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from ft.kernels.verify_law import GREEDY, INFINITY, is_sampled_row, keys_of, load_row, mass_of, scores


@triton.jit
def tiles_kernel(
    logits,
    min_p,
    counts,
    tile_top,
    tile_id,
    tile_fault,
    filled,
    floor,
    vocabulary,
    width,
    tiles,
    TILE: tl.constexpr,
):
    """Top, its lowest id and fault of a tile; clears the row's candidates; floor = log(min_p). Grid [rows, tiles]."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    request = row // width
    if row % width > tl.load(counts + request):
        return
    ids = tile * TILE + tl.arange(0, TILE)
    z, faulty = load_row(logits + row.to(tl.int64) * vocabulary, ids, vocabulary)
    top = tl.max(z)
    place = row.to(tl.int64) * tiles + tile
    tl.store(tile_top + place, top)
    tl.store(tile_id + place, tl.min(tl.where(z == top, ids, 0x7FFFFFFF)))
    tl.store(tile_fault + place, tl.max(faulty.to(tl.int32)))
    if tile == 0:
        tl.store(filled + row, 0)
        if row % width == 0:
            least = tl.load(min_p + request)
            logarithm = tl.log(tl.maximum(least, 1e-37).to(tl.float64)).to(tl.float32)
            tl.store(floor + request, tl.where(least > 0.0, logarithm, -INFINITY))


@triton.jit
def rows_kernel(
    tile_top,
    tile_id,
    tile_fault,
    temperature,
    top_k,
    top_p,
    mode,
    counts,
    row_top,
    row_id,
    row_fault,
    row_edge,
    width,
    tiles,
    TILES: tl.constexpr,
    STEP: tl.constexpr,
    SAMPLED: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """Argmax, fault, scaled top and candidate edge of a row. Grid [rows].

    The edge is the j-th largest tile top. With j = top_k that many ids lie at or above it; without top-k, or one
    beyond the tiles, j leaves out the poorest sixteenth of the tiles, which may be padding. Without top-k the edge
    rises to where the mass of the tops above it leaves an eighth of what top-p drops, so that a peaked row has few
    candidates, but no less than an eighth of the tiles.
    """
    row = tl.program_id(0)
    request = row // width
    if row % width > tl.load(counts + request):
        return
    places = tl.arange(0, TILES)
    start = row.to(tl.int64) * tiles
    inside = places < tiles
    tops = tl.load(tile_top + start + places, mask=inside, other=-INFINITY)
    ids = tl.load(tile_id + start + places, mask=inside, other=0x7FFFFFFF)
    faults = tl.load(tile_fault + start + places, mask=inside, other=0)
    best = tl.max(tops)
    tl.store(row_id + row, tl.min(tl.where(tops == best, ids, 0x7FFFFFFF)).to(tl.int64))
    tl.store(row_fault + row, tl.maximum(tl.max(faults), (best == -INFINITY).to(tl.int32)))
    if SAMPLED:  # noqa: SIM102
        if tl.load(mode + request) != GREEDY:
            heat = tl.load(temperature + request)
            top = tl.div_rn(best, heat)
            tl.store(row_top + row, top)
            if FILTERED:
                shift = tl.where(best == -INFINITY, 0.0, top)
                larger = tl.zeros([TILES], tl.int32)
                ahead = tl.zeros([TILES], tl.int64)
                for first in range(0, TILES, STEP):
                    others = first + tl.arange(0, STEP)
                    other = tl.load(tile_top + start + others, mask=others < tiles, other=-INFINITY)
                    above = other[None, :] > tops[:, None]
                    weight = mass_of(tl.div_rn(other, heat) - shift)
                    larger += tl.sum(above.to(tl.int32), axis=1)
                    ahead += tl.sum(tl.where(above, weight[None, :], 0), axis=1)
                k = tl.load(top_k + request)
                rank = tl.where((k > 0) & (k <= tiles), k, tiles - tiles // 16)
                reach = 1.0 - (1.0 - tl.load(top_p + request).to(tl.float64)) / 8.0
                whole = tl.sum(mass_of(tl.div_rn(tops, heat) - shift)).to(tl.float64)
                near = (ahead.to(tl.float64) <= reach * whole) | (larger < tl.where(k > 0, tiles, tiles // 8))
                edge = tl.min(tl.where(inside & near & (larger < rank), tops, INFINITY))
                scaled = tl.div_rn(edge, heat) - shift
                tl.store(row_edge + row, scaled)


@triton.jit
def masses_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    mode,
    counts,
    floor,
    row_top,
    row_edge,
    filled,
    keys,
    tile_mass,
    tile_alive,
    vocabulary,
    width,
    tiles,
    TILE: tl.constexpr,
    CAPACITY: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """Mass and number of the ids of a tile that min-p keeps; the candidates join keys. Grid [rows, tiles]."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    if is_sampled_row(row, width, counts, mode):
        request = row // width
        ids = tile * TILE + tl.arange(0, TILE)
        z, _ = load_row(logits + row.to(tl.int64) * vocabulary, ids, vocabulary)
        score = scores(z, ids, tl.load(temperature + request), tl.load(row_top + row))
        alive = (score >= tl.load(floor + request)) & (score > -INFINITY)
        place = row.to(tl.int64) * tiles + tile
        tl.store(tile_mass + place, tl.sum(tl.where(alive, mass_of(score), 0)))
        if FILTERED:
            tl.store(tile_alive + place, tl.sum(alive.to(tl.int32)))
            if (tl.load(top_k + request) > 0) | (tl.load(top_p + request) < 1.0):
                chosen = alive & (score >= tl.load(row_edge + row))
                found = tl.sum(chosen.to(tl.int32))
                if found > 0:
                    first = tl.atomic_add(filled + row, found, sem="relaxed")
                    slot = first + tl.cumsum(chosen.to(tl.int32), 0) - 1
                    key = keys_of(score, ids)
                    target = keys + row.to(tl.int64) * CAPACITY + slot
                    tl.store(target, key, mask=chosen & (slot < CAPACITY))
