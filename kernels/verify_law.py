"""Device functions of a row's law: logits to scores, integer masses, sort keys and shares.

A score is z / T less its maximum, fp32, 0 at the top. A mass is exp(score) in units of 2**-40, int64, so that sums
have the same bits in every order. A key orders (score, id), larger first and lower id first: 31 bits of score
above 24 bits of id, so it is positive and unique in its row.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

TILE = 1024
"""Ids a program works on."""

ID_LIMIT = 2**24
"""Vocabularies stay below it: a key holds an id in 24 bits."""

GREEDY = tl.constexpr(0)
COUPLED = tl.constexpr(2)
BLOCK = tl.constexpr(3)

INFINITY = tl.constexpr(float("inf"))
UNIT = tl.constexpr(float(2**40))
ID_BITS = tl.constexpr(24)
ID_MASK = tl.constexpr(2**24 - 1)
SCORE_TOP = tl.constexpr(2**31 - 1)
KEY_LIMIT = tl.constexpr(2**55 - 1)

LOG2_E = tl.constexpr(1.4426950408889634)
LN2_HIGH = tl.constexpr(0.693359375)
LN2_LOW = tl.constexpr(-2.1219444005469057e-4)
WHOLE_FP32 = tl.constexpr(float(2**23))
WHOLE_FP64 = tl.constexpr(float(2**52))


@triton.jit
def is_sampled_row(row, width, counts, mode):
    """Row of a request that is not greedy, one that can decide a token."""
    request = row // width
    return (tl.load(mode + request) != GREEDY) & (row % width <= tl.load(counts + request))


@triton.jit
def load_row(base, ids, vocabulary):
    """Logits at `ids` as fp32, NaN and +inf as -inf, and which ones were so; -inf beyond the vocabulary."""
    z = tl.load(base + ids, mask=(ids >= 0) & (ids < vocabulary), other=-INFINITY).to(tl.float32)
    faulty = ~(z < INFINITY)
    return tl.where(faulty, -INFINITY, z), faulty


@triton.jit
def scores(z, ids, temperature, top):
    """z / T - top; a row without finite entry (top is -inf) is a point mass at id 0."""
    shifted = tl.div_rn(z, temperature) - tl.where(top == -INFINITY, 0.0, top)
    return tl.where(top == -INFINITY, tl.where(ids == 0, 0.0, -INFINITY), shifted)


@triton.jit
def whole(value):
    """fp32 >= 0 to the nearest integer, ties to even, as int64."""
    return tl.where(value < WHOLE_FP32, (value + WHOLE_FP32) - WHOLE_FP32, value).to(tl.int64)


@triton.jit
def whole_wide(value):
    """fp64 in [0, 2**51) to the nearest integer, ties to even, as int64."""
    return ((value + WHOLE_FP64) - WHOLE_FP64).to(tl.int64)


@triton.jit
def mass_of(score):
    """exp(score) in units, int64, of scores <= 0.

    Reduced by ln 2 in two parts, every multiply-add fused by name: the bits are the same in every kernel.
    """
    bounded = tl.maximum(score, -30.0)
    power = tl.floor(tl.fma(bounded, LOG2_E, 0.5))
    rest = tl.fma(power, -LN2_HIGH, bounded)
    rest = tl.fma(power, -LN2_LOW, rest)
    scale = ((power.to(tl.int32) + (127 + 40)) << 23).to(tl.float32, bitcast=True)
    return tl.where(score < -29.0, 0, whole(tl.exp2(rest * LOG2_E) * scale))


@triton.jit
def keys_of(score, ids):
    """Sort keys int64 of scores <= 0."""
    depth = tl.abs(score).to(tl.int32, bitcast=True)
    return ((depth ^ SCORE_TOP).to(tl.int64) << ID_BITS) | (ids ^ ID_MASK).to(tl.int64)


@triton.jit
def mass_of_key(key):
    """Mass of the score in a key; 0 of the empty key 0."""
    empty = key == 0
    depth = (tl.where(empty, KEY_LIMIT, key) >> ID_BITS).to(tl.int32) ^ SCORE_TOP
    return tl.where(empty, 0, mass_of(-depth.to(tl.float32, bitcast=True)))


@triton.jit
def kept_mass(score, ids, floor, cut):
    """Mass of ids that min-p (score >= floor) and the cut (key >= cut) keep, 0 elsewhere."""
    kept = (score >= floor) & (keys_of(score, ids) >= cut)
    return tl.where(kept, mass_of(score), 0)


@triton.jit
def share(mass, total):
    """Mass over total, fp32."""
    return (mass.to(tl.float64) / total.to(tl.float64)).to(tl.float32)
