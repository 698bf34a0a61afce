"""The drafts of B requests judged in one launch: greedy, rejection, coupled and block requests mixed.

verify_sampling 3, 4, 13. Draft r (from 0) is judged by row r, whose token stands at absolute index
positions + r; that index keys the random numbers, and `positions` keys the step. A row is computed as a request of its own by functions
whose bits depend on no neighbour, so neither R nor B changes a bit of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ft.fast.draft_law import DraftLaw, law_of_drafts
from ft.fast.random import gumbel, uniform
from ft.fast.sampling import SamplingRows, draw, sanitised, scores, shares, top_id, units
from ft.reference.types import Proposal, Stream, Verification

ELEMENTS = 2**23
"""Logits worked on at a time; it bounds the temporaries (about 60 bytes each) and changes no bit."""


@dataclass(frozen=True)
class Uniforms:
    """Random numbers put in from outside, for exact tests: coins fp32 [B, k], final fp32 [B], on [0, 1)."""

    coins: Tensor
    final: Tensor


@dataclass(frozen=True)
class Judged:
    """accepted: int64 [B], n. emitted: int64 [B, R], n + 1 tokens, then -1.

    broken: bool [B, R], rows 0..n that a broken row decided (4.5): itself, or any row of the step in block
    verification, which looks at them all.
    """

    accepted: Tensor
    emitted: Tensor
    broken: Tensor

    @property
    def failed(self) -> Tensor:
        """bool [B]: a broken row decided some token of the run."""
        return self.broken.any(-1)

    def failed_within(self, cut: Tensor) -> Tensor:
        """bool [B]: a broken row decided one of the first `cut` [B] tokens, those that are emitted."""
        rows = torch.arange(self.broken.shape[1], device=cut.device)
        return (self.broken & (rows < cut[:, None])).any(-1)


def verify(
    logits: Tensor,
    proposal: Proposal,
    rows: SamplingRows,
    positions: Tensor,
    uniforms: Uniforms | None = None,
) -> Judged:
    """Judge drafts [B, k] by edited logits [B, k + 1, V]; positions int64 [B] is C + 1, the first token decided."""
    width, vocabulary = logits.shape[1:]
    drafts = proposal.tokens.clamp(0, vocabulary - 1)
    if drafts.shape[1] != width - 1:
        raise ValueError(f"{drafts.shape[1]} drafts need that many rows of logits and one, got {width}")
    index = torch.arange(width, device=logits.device)
    token, p, broken = decide_rows(logits, rows, positions[:, None] + index)
    accepted = prefix_length(drafts == token[:, :-1], proposal.counts)
    last = token.gather(1, accepted[:, None])
    if p is not None:
        laws = law_of_drafts(drafts, proposal.candidates, proposal.q, vocabulary)
        coins = coins_of(rows, positions, width - 1) if uniforms is None else uniforms.coins
        drawn, weight = judge_sampled(p, laws, drafts, proposal.counts, coins, rows)
        drawing = (rows.mode == Verification.REJECTION) | (rows.mode == Verification.BLOCK)
        accepted = torch.where(drawing, drawn, accepted)
        mass = final_mass(p, laws, accepted, proposal.counts, weight)
        final = final_of(rows, positions, accepted) if uniforms is None else uniforms.final
        last = torch.where(drawing[:, None], draw(mass, final)[:, None], last)
    padded = torch.cat([drafts, last], 1)
    emitted = torch.where(
        index < accepted[:, None], padded, torch.where(index == accepted[:, None], last, -1)
    )
    if Verification.BLOCK in rows.modes:
        seen = (broken & (index <= proposal.counts[:, None])).any(-1) & (rows.mode == Verification.BLOCK)
        broken = broken | seen[:, None]
    return Judged(accepted, emitted, broken & (index <= accepted[:, None]))


def prefix_length(passed: Tensor, counts: Tensor) -> Tensor:
    """int64 [B]: how many leading drafts of bool [B, k], of which `counts` are real, have passed."""
    real = torch.arange(passed.shape[1], device=passed.device) < counts[:, None]
    return (passed & real).long().cumprod(1).sum(1)


def judge_sampled(
    p: Tensor, laws: DraftLaw, drafts: Tensor, counts: Tensor, coins: Tensor, rows: SamplingRows
) -> tuple[Tensor, Tensor]:
    """Accepted int64 [B] by laws p [B, R, V] and coins [B, k], and the weight fp64 [B] of p in the last draw."""
    at_draft = p[:, :-1].gather(2, drafts[:, :, None])[:, :, 0]
    accepted = prefix_length(coins * laws.at_draft < at_draft, counts)
    weight = torch.ones_like(accepted, dtype=torch.float64)
    if Verification.BLOCK not in rows.modes or not drafts.shape[1]:
        return accepted, weight
    block, block_weight = judge_block(p, laws, at_draft, counts, coins)
    chosen = rows.mode == Verification.BLOCK
    return torch.where(chosen, block, accepted), torch.where(chosen, block_weight, weight)


def judge_block(
    p: Tensor, laws: DraftLaw, at_draft: Tensor, counts: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Block verification (13; Sun et al., arXiv 2403.10444): accepted int64 [B], and its weight fp64 [B].

    sum max(0, w p - q) is w less the overlap min(w p, q), which lies on the candidates alone.
    """
    drafts = at_draft.shape[1]
    weight = torch.ones_like(counts, dtype=torch.float64)
    accepted, kept = torch.zeros_like(counts), weight
    for index in range(drafts):
        ratio = at_draft[:, index].double() / laws.at_draft[:, index].double()
        weight = torch.minimum(weight * ratio, torch.ones_like(weight))
        left = torch.ones_like(weight)
        if index + 1 < drafts:
            there = p[:, index + 1].gather(1, laws.ids[:, index + 1]).double() * weight[:, None]
            overlap = torch.minimum(there, laws.q[:, index + 1].double())
            left = (weight - torch.where(laws.first[:, index + 1], overlap, 0.0).sum(-1)).clamp(min=0.0)
        middle = torch.where(weight >= 1.0, 1.0, left / (left + 1.0 - weight))
        passes = torch.where(counts == index + 1, weight, middle)
        passed = (coins[:, index].double() < passes) & (index < counts)
        accepted = torch.where(passed, index + 1, accepted)
        kept = torch.where(passed, weight, kept)
    return accepted, torch.where(accepted < counts, kept, 1.0)


def decide_rows(
    logits: Tensor, rows: SamplingRows, positions: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """`decide` for logits [B, R, V] and positions [B, R]: token [B, R], p [B, R, V] or None, broken [B, R].

    Rows become requests of their own, as many at a time as ELEMENTS allows.
    """
    requests, width, vocabulary = logits.shape
    step = max(1, ELEMENTS // (requests * vocabulary))
    tokens, laws, faults = [], [], []
    for start in range(0, width, step):
        part = logits[:, start : start + step]
        shape = part.shape[:2]
        token, p, broken = decide(
            part.flatten(0, 1), rows.repeat(shape[1]), positions[:, start : start + step].flatten()
        )
        tokens.append(token.view(shape))
        faults.append(broken.view(shape))
        if p is not None:
            laws.append(p.view(part.shape))
    return torch.cat(tokens, 1), torch.cat(laws, 1) if laws else None, torch.cat(faults, 1)


def decide(logits: Tensor, rows: SamplingRows, positions: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Of one row a request, [B, V]: the token int64 [B] of greedy and coupled requests, the law p fp32 [B, V]
    of the others (None when the batch has none), and broken bool [B].
    """
    row, faulty = sanitised(logits)
    token, p = top_id(row), None
    if rows.modes <= {Verification.GREEDY}:
        return token, p, faulty
    kept = scores(row, rows)
    if Verification.COUPLED in rows.modes:
        coupled = top_id(kept + gumbel(rows.seed, positions, row.shape[-1]))
        token = torch.where(rows.mode == Verification.COUPLED, coupled, token)
    if rows.modes & {Verification.REJECTION, Verification.BLOCK}:
        p = shares(units(torch.exp(kept)))
    return token, p, faulty


def final_mass(p: Tensor, laws: DraftLaw, accepted: Tensor, counts: Tensor, weight: Tensor) -> Tensor:
    """What the last token of each run is drawn from, in units, int64 [B, V].

    Row n = accepted of p [B, R, V] when all drafts passed; else the residual max(0, weight * p - q) with q of draft
    n, or p again where no mass is left (4.1). weight: fp64 [B].
    """
    p = row_of(p, accepted)
    mass = units(p)
    if laws.ids.shape[1] == 0:
        return mass
    rejected = accepted.clamp(max=laws.ids.shape[1] - 1)
    dense = torch.zeros_like(p).scatter(1, row_of(laws.ids, rejected), row_of(laws.q, rejected))
    left = units(torch.clamp(weight[:, None] * p - dense, min=0.0))
    subtract = (accepted < counts)[:, None] & (left > 0).any(-1, keepdim=True)
    return torch.where(subtract, left, mass)


def row_of(values: Tensor, row: Tensor) -> Tensor:
    """Row `row` [B] of values [B, R, N], as [B, N]."""
    return values.gather(1, row[:, None, None].expand(-1, 1, values.shape[2]))[:, 0]


def coins_of(rows: SamplingRows, positions: Tensor, drafts: int) -> Tensor:
    """The coins fp32 [B, k] of the drafts at positions, positions + 1, ..."""
    places = positions[:, None] + torch.arange(drafts, device=positions.device)
    wide = rows.repeat(drafts)
    steps = positions.repeat_interleave(drafts, output_size=places.numel())
    return uniform(wide.seed, places.flatten(), Stream.COIN, steps).view(places.shape)


def final_of(rows: SamplingRows, positions: Tensor, accepted: Tensor) -> Tensor:
    """The uniform fp32 [B] of the last draw of each run."""
    return uniform(rows.seed, positions + accepted, Stream.FINAL, positions)
