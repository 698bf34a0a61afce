"""The drafts of B requests judged in one launch: greedy, rejection and coupled requests mixed.

verify_sampling 3, 4, 13. Draft r (from 0) is judged by row r, whose token stands at absolute index
positions + r; that index keys the random numbers. A row is computed as a request of its own by functions
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

    broken: bool [B, R], rows 0..n whose logits were broken (4.5); rows beyond n decided nothing.
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
    """Judge drafts [B, k] by logits [B, k + 1, V]; positions int64 [B] is C + 1, the first token decided."""
    width, vocabulary = logits.shape[1:]
    drafts = proposal.tokens.clamp(0, vocabulary - 1)
    if drafts.shape[1] != width - 1:
        raise ValueError(f"{drafts.shape[1]} drafts need that many rows of logits and one, got {width}")
    index = torch.arange(width, device=logits.device)
    token, p, broken = decide_rows(logits, rows, positions[:, None] + index)
    accept = drafts == token[:, :-1]
    if p is not None:
        laws = law_of_drafts(drafts, proposal.candidates, proposal.q, vocabulary)
        coins = coins_of(rows, positions, width - 1) if uniforms is None else uniforms.coins
        passed = coins * laws.at_draft < p[:, :-1].gather(2, drafts[:, :, None])[:, :, 0]
        accept = torch.where((rows.mode == Verification.REJECTION)[:, None], passed, accept)
    accept = accept & (index[:-1] < proposal.counts[:, None])
    accepted = accept.long().cumprod(1).sum(1)
    last = token.gather(1, accepted[:, None])
    if p is not None:
        mass = final_mass(p, laws, accepted, proposal.counts)
        final = uniform(rows.seed, positions + accepted, Stream.FINAL) if uniforms is None else uniforms.final
        drawn = draw(mass, final)[:, None]
        last = torch.where((rows.mode == Verification.REJECTION)[:, None], drawn, last)
    padded = torch.cat([drafts, last], 1)
    emitted = torch.where(
        index < accepted[:, None], padded, torch.where(index == accepted[:, None], last, -1)
    )
    return Judged(accepted, emitted, broken & (index <= accepted[:, None]))


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
    if Verification.REJECTION in rows.modes:
        p = shares(units(torch.exp(kept)))
    return token, p, faulty


def final_mass(p: Tensor, laws: DraftLaw, accepted: Tensor, counts: Tensor) -> Tensor:
    """What the last token of each run is drawn from, in units, int64 [B, V].

    Row n = accepted of p [B, R, V] when all drafts passed; else the residual max(0, p - q) with q of draft n,
    or p again where no mass is left (4.1).
    """
    p = row_of(p, accepted)
    mass = units(p)
    if laws.ids.shape[1] == 0:
        return mass
    rejected = accepted.clamp(max=laws.ids.shape[1] - 1)
    dense = torch.zeros_like(p).scatter(1, row_of(laws.ids, rejected), row_of(laws.q, rejected))
    left = units(torch.clamp(p - dense, min=0.0))
    subtract = (accepted < counts)[:, None] & (left > 0).any(-1, keepdim=True)
    return torch.where(subtract, left, mass)


def row_of(values: Tensor, row: Tensor) -> Tensor:
    """Row `row` [B] of values [B, R, N], as [B, N]."""
    return values.gather(1, row[:, None, None].expand(-1, 1, values.shape[2]))[:, 0]


def coins_of(rows: SamplingRows, positions: Tensor, drafts: int) -> Tensor:
    """The coins fp32 [B, k] of the drafts at positions, positions + 1, ..."""
    places = positions[:, None] + torch.arange(drafts, device=positions.device)
    return uniform(rows.repeat(drafts).seed, places.flatten(), Stream.COIN).view(places.shape)
