"""What enumeration cannot see: the generator's streams behind coupling, drafts and rejection (14).

Seeds are fixed; thresholds are false alarm rates of 1e-6.
"""

import pytest
import torch
from torch import Tensor

from ft.contracts.law.exact import CRITICAL_15, chi_square, exact_law
from ft.fast import random, sampler
from ft.fast import verify as fast_verify
from ft.reference.types import Proposal, Sampling, Stream

COUPLED = Sampling(temperature=1.0, seed=0)


def coupled_tokens(logits: Tensor, count: int, positions: Tensor | None = None) -> Tensor:
    """Tokens [count] of plain coupled decoding of one row, one seed a request."""
    rows = sampler.SamplingRows.of([COUPLED] * count, [seed * 2**33 + 17 for seed in range(count)])
    positions = torch.arange(count) % 211 if positions is None else positions
    none = Proposal(torch.zeros(count, 0, dtype=torch.int64), torch.zeros(count, dtype=torch.int64))
    return sampler.verify(logits.expand(count, 1, -1), none, rows, positions).emitted[:, 0]


def logits_of(vocabulary: int, seed: int = 0) -> Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed))


def coupled_statistic(count: int = 100_000) -> float:
    logits = logits_of(16)
    counts = torch.bincount(coupled_tokens(logits, count), minlength=16)
    return chi_square(counts.tolist(), exact_law(logits.tolist(), COUPLED))


def test_coupled_tokens_follow_the_law() -> None:
    assert coupled_statistic() < CRITICAL_15


def test_noise_of_another_law_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_log(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
        return -torch.log(random.open_uniform(seeds, positions, Stream.COUPLED, vocabulary))

    monkeypatch.setattr(fast_verify, "gumbel", one_log)
    assert coupled_statistic(20_000) > CRITICAL_15


def pair_statistic(shift: int) -> float:
    """Pairs of tokens at two positions of one seed, against the product of their laws; V = 4."""
    logits, count = 0.5 * logits_of(4, 1), 40_000
    positions = torch.arange(count) % 199
    first = coupled_tokens(logits, count, positions)
    second = coupled_tokens(logits, count, positions + shift)
    law = exact_law(logits.tolist(), COUPLED)
    return chi_square(
        torch.bincount(first * 4 + second, minlength=16).tolist(), [a * b for a in law for b in law]
    )


def test_neighbouring_positions_are_independent_and_a_reused_position_is_caught() -> None:
    assert pair_statistic(1) < CRITICAL_15
    assert pair_statistic(0) > CRITICAL_15


def drafted_statistic(uniforms: sampler.Uniforms | None, count: int) -> float:
    """First emitted tokens of a verify of one sampled draft, against p; p > q on several tokens."""
    target, draft = logits_of(16, 2), logits_of(16, 3)
    sampling = Sampling(temperature=1.0)
    rows = sampler.SamplingRows.of([sampling] * count, range(count))
    positions = torch.full((count,), 77)
    tokens, candidates, q = sampler.choose_drafts(draft.expand(count, -1), positions, rows, positions)
    proposal = Proposal(
        tokens[:, None], torch.ones(count, dtype=torch.int64), candidates[:, None], q[:, None]
    )
    judged = sampler.verify(target.expand(count, 2, -1), proposal, rows, positions, uniforms)
    assert 0.2 < judged.accepted.double().mean() < 0.95
    counts = torch.bincount(judged.emitted[:, 0], minlength=16)
    return chi_square(counts.tolist(), exact_law(target.tolist(), sampling))


def test_drafts_coins_and_final_draws_are_independent() -> None:
    assert drafted_statistic(None, 60_000) < CRITICAL_15


@pytest.mark.parametrize("shared", ["coin", "final"])
def test_a_draw_that_shares_the_drafts_number_is_caught(shared: str) -> None:
    count = 60_000
    seeds, positions = torch.arange(count), torch.full((count,), 77)
    coin, final, draft = (
        random.uniform(seeds, positions, stream, positions)
        for stream in (Stream.COIN, Stream.FINAL, Stream.DRAFT)
    )
    uniforms = sampler.Uniforms(
        (draft if shared == "coin" else coin)[:, None], draft if shared == "final" else final
    )
    assert drafted_statistic(uniforms, count) > CRITICAL_15


def accept_rate(shift: int) -> tuple[float, float]:
    """Rate at which coupled drafts are accepted, and (1 - TV) / (1 + TV) of the two laws."""
    target, count = logits_of(16, 4), 20_000
    draft = target + 0.5 * logits_of(16, 5)
    rows = sampler.SamplingRows.of([COUPLED] * count, range(count))
    positions = torch.arange(count) % 101
    tokens, _, _ = sampler.choose_drafts(draft.expand(count, -1), positions + shift, rows, positions + shift)
    proposal = Proposal(tokens[:, None], torch.ones(count, dtype=torch.int64))
    judged = sampler.verify(target.expand(count, 2, -1), proposal, rows, positions)
    laws = zip(exact_law(target.tolist(), COUPLED), exact_law(draft.tolist(), COUPLED), strict=True)
    distance = sum(abs(p - q) for p, q in laws) / 2
    return float(judged.accepted.double().mean()), (1 - distance) / (1 + distance)


def test_coupled_drafts_walk_with_the_targets_noise() -> None:
    rate, bound = accept_rate(0)
    assert rate > bound - 0.02
    shifted, _ = accept_rate(1)
    assert shifted < bound - 0.1
