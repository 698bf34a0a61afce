"""How many drafts of each request pass: the law of every draft made fit for judging, then one verdict a request.

Draft r is judged by row r. Its law is kept as SLOTS (id, q) pairs, each id once, total 1; empty slots hold id -1
and q 0. A row of q that is not trusted is a point mass at the draft.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from ft.kernels.verify_law import BLOCK, COUPLED, GREEDY, UNIT, kept_mass, load_row, scores, share, whole
from ft.kernels.verify_noise import COIN_STREAM, uniform

ONE = tl.constexpr(2**40)
TOLERANCE = tl.constexpr(int(1e-4 * 2**40))
"""1.0 in units, and by how many the total of a trusted row of q may differ from it."""


@triton.jit
def shares_at(base, ids, vocabulary, temperature, top, floor, cut, total):
    """p fp32 at `ids` of a row; 0 at ids outside the vocabulary."""
    z, _ = load_row(base, ids, vocabulary)
    mass = kept_mass(scores(z, ids, temperature, top), ids, floor, cut)
    return share(mass, total)


@triton.jit
def drafts_kernel(
    logits,
    drafts,
    counts,
    candidates,
    q,
    temperature,
    mode,
    floor,
    row_top,
    row_cut,
    row_total,
    law_id,
    law_q,
    law_p,
    draft_p,
    draft_q,
    seed,
    positions,
    coins,
    vocabulary,
    width,
    choices,
    SLOTS: tl.constexpr,
    TOLD: tl.constexpr,
    GIVEN: tl.constexpr,
):
    """law_id, law_q and law_p (p at the ids) of every draft, p and q at the draft, and its coin unless GIVEN.

    Grid [B, k].
    """
    request = tl.program_id(0)
    index = tl.program_id(1)
    how = tl.load(mode + request)
    if (how == GREEDY) | (how == COUPLED) | (index >= tl.load(counts + request)):
        return
    row = request * width + index
    draft = request * (width - 1) + index
    token = tl.load(drafts + draft)
    token = tl.minimum(tl.maximum(token, 0), vocabulary - 1).to(tl.int32)
    slot = tl.arange(0, SLOTS)
    ids = tl.where(slot == 0, token, -1)
    told = tl.where(slot == 0, 1.0, 0.0)
    at_draft = 1.0
    if TOLD:
        real = slot < choices
        given = tl.load(candidates + draft.to(tl.int64) * choices + slot, mask=real, other=-1)
        weight = tl.load(q + draft.to(tl.int64) * choices + slot, mask=real, other=0.0)
        sound = (weight >= 0.0) & (weight <= 2.0) & (given >= 0) & (given < vocabulary)
        mass = whole(tl.where(sound, weight, 0.0) * UNIT)
        total = tl.sum(mass)
        equal = given[:, None] == given[None, :]
        merged = tl.sum(tl.where(equal, mass[None, :], 0), axis=1)
        earlier = equal & (slot[None, :] < slot[:, None])
        first = tl.max(earlier.to(tl.int32), axis=1) == 0
        drawn = tl.max(tl.where(given == token, merged, 0))
        whole_row = tl.min((sound | (slot >= choices)).to(tl.int32)) > 0
        trusted = whole_row & (tl.abs(total - ONE) <= TOLERANCE) & (drawn > 0)
        divisor = tl.maximum(total, 1)
        ids = tl.where(trusted, tl.where(real & first, given, -1).to(tl.int32), ids)
        told = tl.where(trusted, tl.where(real & first, share(merged, divisor), 0.0), told)
        at_draft = tl.where(trusted, share(drawn, divisor), 1.0)
    base = logits + row.to(tl.int64) * vocabulary
    heat = tl.load(temperature + request)
    top = tl.load(row_top + row)
    least = tl.load(floor + request)
    cut = tl.load(row_cut + row)
    mass_all = tl.load(row_total + row)
    place = draft.to(tl.int64) * SLOTS + slot
    tl.store(law_id + place, ids)
    tl.store(law_q + place, told)
    tl.store(law_p + place, shares_at(base, ids, vocabulary, heat, top, least, cut, mass_all))
    tl.store(draft_p + draft, shares_at(base, token, vocabulary, heat, top, least, cut, mass_all))
    tl.store(draft_q + draft, at_draft)
    if not GIVEN:
        start = tl.load(positions + request)
        tl.store(coins + draft, uniform(tl.load(seed + request), start + index, COIN_STREAM, start))


@triton.jit
def judge_block(law_q, law_p, draft_p, draft_q, coins, first, count, ROWS: tl.constexpr, SLOTS: tl.constexpr):
    """Block verification of `count` drafts from `first` on: how many pass, and the weight of p in the last draw.

    The mass left, sum max(0, w p - q), is w less the overlap min(w p, q), which lies on the slots alone.
    """
    slot = tl.arange(0, SLOTS)
    weight = tl.full((), 1.0, tl.float64)
    kept = tl.full((), 1.0, tl.float64)
    accepted = tl.full((), 0, tl.int32)
    for index in range(ROWS - 1):
        draft = first + index
        real = index < count
        more = index + 1 < count
        p = tl.load(draft_p + draft, mask=real, other=1.0)
        q = tl.load(draft_q + draft, mask=real, other=1.0)
        weight = tl.minimum(weight * (p.to(tl.float64) / q.to(tl.float64)), 1.0)
        place = (draft + 1).to(tl.int64) * SLOTS + slot
        there = tl.load(law_p + place, mask=more, other=0.0).to(tl.float64) * weight
        overlap = tl.minimum(there, tl.load(law_q + place, mask=more, other=0.0).to(tl.float64))
        left = tl.maximum(weight - tl.sum(overlap), 0.0)
        certain = weight >= 1.0
        middle = tl.where(certain, 1.0, left / tl.where(certain, 1.0, left + 1.0 - weight))
        passes = tl.where(more, middle, weight)
        coin = tl.load(coins + draft, mask=real, other=1.0)
        passed = real & (coin.to(tl.float64) < passes)
        accepted = tl.where(passed, index + 1, accepted)
        kept = tl.where(passed, weight, kept)
    return accepted, kept


@triton.jit
def accept_kernel(
    drafts,
    counts,
    mode,
    row_id,
    row_fault,
    law_q,
    law_p,
    draft_p,
    draft_q,
    coins,
    accepted,
    emitted,
    broken,
    weights,
    vocabulary,
    width,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    DRAWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """accepted, broken, and emitted but for the last token of drawing requests (-1). Grid [B].

    A block request looks at all its rows, so a broken one breaks them all.
    """
    request = tl.program_id(0)
    how = tl.load(mode + request)
    count = tl.load(counts + request).to(tl.int32)
    index = tl.arange(0, ROWS)
    real = index < count
    row = request * width + index
    draft = request * (width - 1) + index
    token = tl.load(drafts + draft, mask=real, other=0)
    token = tl.minimum(tl.maximum(token, 0), vocabulary - 1)
    own = tl.load(row_id + row, mask=index <= count, other=-1)
    passed = token == own
    drawing = (how != GREEDY) & (how != COUPLED)
    if DRAWS:  # noqa: SIM102
        if drawing:
            coin = tl.load(coins + draft, mask=real, other=1.0)
            at_draft = tl.load(draft_q + draft, mask=real, other=1.0)
            passed = coin * at_draft < tl.load(draft_p + draft, mask=real, other=0.0)
    number = tl.min(tl.where(real & passed, ROWS, index))
    fault = tl.load(row_fault + row, mask=index <= count, other=0)
    if DRAWS:
        weight = tl.full((), 1.0, tl.float64)
        if BLOCKS:  # noqa: SIM102
            if how == BLOCK:
                first = request * (width - 1)
                number, weight = judge_block(law_q, law_p, draft_p, draft_q, coins, first, count, ROWS, SLOTS)
                fault = tl.maximum(fault, tl.max(fault))
        tl.store(weights + request, weight)
    last = tl.where(drawing, -1, tl.sum(tl.where(index == number, own, 0)))
    run = tl.where(index < number, token, tl.where(index == number, last, -1))
    inside = index < width
    tl.store(accepted + request, number.to(tl.int64))
    tl.store(emitted + row, run, mask=inside)
    tl.store(broken + row, tl.where(index <= number, fault, 0).to(tl.uint8), mask=inside)
