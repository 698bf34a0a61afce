"""Random numbers in kernels: Philox4x32-10, uniforms and Gumbel noise, and the noisy argmax of a tile.

Counter (position of the token, stream, block, first position of the step or 0), key: the seed's 64 bits.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from ft.kernels.verify_law import COUPLED, INFINITY, keys_of, load_row, scores

COIN_STREAM = tl.constexpr(1)
FINAL_STREAM = tl.constexpr(2)
COUPLED_STREAM = tl.constexpr(3)

BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)
LN2_HIGH = tl.constexpr(0.693359375)
LN2_LOW = tl.constexpr(-2.1219444005469057e-4)


@triton.jit
def words(seed, position, stream, block, step):
    """Four uint32 words of every block. seed: int64 scalar; position, step: int64; block: int32, all one shape."""
    zero = block * 0
    c0 = (zero + position).to(tl.uint32)
    c1 = (zero + stream).to(tl.uint32)
    c3 = (zero + step).to(tl.uint32)
    return tl.philox(seed, c0, c1, block.to(tl.uint32), c3)


@triton.jit
def uniform(seed, position, stream, step):
    """fp32 on [0, 1): the top 24 bits of the first word. position: int64 block."""
    word, _, _, _ = words(seed, position, stream, (position * 0).to(tl.int32), step)
    return (word >> 8).to(tl.float32) * (2.0**-24)


@triton.jit
def natural_log(x):
    """ln of positive normal fp32 to about one unit in the last place, near 1 too: 2 atanh((m - 1) / (m + 1))."""
    bits = x.to(tl.int32, bitcast=True)
    power = (bits >> 23) - 127
    part = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    upper = part > 1.4142135
    part = tl.where(upper, part * 0.5, part)
    power = tl.where(upper, power + 1, power).to(tl.float32)
    t = tl.div_rn(part - 1.0, part + 1.0)
    square = t * t
    series = tl.fma(square, 1.0 / 9.0, 1.0 / 7.0)
    series = tl.fma(square, series, 1.0 / 5.0)
    series = tl.fma(square, series, 1.0 / 3.0)
    tail = tl.fma(t * square, series * 2.0, power * LN2_LOW)
    return tl.fma(power, LN2_HIGH, tl.fma(t, 2.0, tail))


@triton.jit
def gumbel(word):
    """-log(-log1p(-u)) of uint32 words, u = (word | 1) * 2**-32 capped below 1.

    1 - u rounds; what it lost is put back to first order, else small u, which win, would lose their bits.
    """
    u = tl.minimum((word | 1).to(tl.float32) * (2.0**-32), BELOW_ONE)
    rest = 1.0 - u
    lost = (1.0 - rest) - u
    return -natural_log(-(natural_log(rest) + tl.div_rn(lost, rest)))


@triton.jit
def tile_noise(seed, position, tile, TILE: tl.constexpr):
    """Gumbel noise fp32 [TILE] of the ids of a tile: id v reads word v % 4 of block v // 4."""
    block = tile * (TILE // 4) + tl.arange(0, TILE // 4)
    a, b, c, d = words(seed, position, COUPLED_STREAM, block, 0)
    return gumbel(tl.interleave(tl.interleave(a, c), tl.interleave(b, d)))


@triton.jit
def noise_kernel(
    logits,
    temperature,
    seed,
    mode,
    positions,
    counts,
    floor,
    row_top,
    row_cut,
    tile_top,
    tile_id,
    vocabulary,
    width,
    tiles,
    TILE: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """Coupled rows: tile_top and tile_id become the largest score plus noise and its lowest id. Grid [rows, tiles]."""
    row = tl.program_id(0)
    tile = tl.program_id(1)
    request = row // width
    if (tl.load(mode + request) != COUPLED) | (row % width > tl.load(counts + request)):
        return
    ids = tile * TILE + tl.arange(0, TILE)
    z, _ = load_row(logits + row.to(tl.int64) * vocabulary, ids, vocabulary)
    score = scores(z, ids, tl.load(temperature + request), tl.load(row_top + row))
    kept = (score >= tl.load(floor + request)) & (score > -INFINITY)
    if FILTERED:
        kept = kept & (keys_of(score, ids) >= tl.load(row_cut + row))
    best = -INFINITY
    lowest = tile * TILE
    if tl.sum(kept.to(tl.int32)) > 0:
        position = tl.load(positions + request) + row % width
        noise = tile_noise(tl.load(seed + request), position, tile, TILE)
        value = tl.where(kept, score + noise, -INFINITY)
        best = tl.max(value)
        lowest = tl.min(tl.where(value == best, ids, 0x7FFFFFFF))
    place = row.to(tl.int64) * tiles + tile
    tl.store(tile_top + place, best)
    tl.store(tile_id + place, lowest)


@triton.jit
def couple_kernel(mode, counts, tile_top, tile_id, row_id, width, tiles, TILES: tl.constexpr):
    """Coupled rows: row_id becomes the id of the largest noisy score. Grid [rows]."""
    row = tl.program_id(0)
    request = row // width
    if (tl.load(mode + request) != COUPLED) | (row % width > tl.load(counts + request)):
        return
    places = tl.arange(0, TILES)
    start = row.to(tl.int64) * tiles
    value = tl.load(tile_top + start + places, mask=places < tiles, other=-INFINITY)
    ids = tl.load(tile_id + start + places, mask=places < tiles, other=0x7FFFFFFF)
    tl.store(row_id + row, tl.min(tl.where(value == tl.max(value), ids, 0x7FFFFFFF)).to(tl.int64))
