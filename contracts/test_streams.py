"""What enumeration cannot see: the generator's streams behind coupling, drafts and rejection (14).

Seeds are fixed; thresholds are false alarm rates of 1e-6.
"""

import pytest
import torch
from torch import Tensor

from ft.contracts.law.exact import CRITICAL_15, chi_square, exact_law
from ft.fast import drafting, random, sampler
from ft.fast import verify as fast_verify
from ft.reference.types import Proposal, Sampling, Stream, Verification

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


BLOCK = Sampling(temperature=1.0, verification=Verification.BLOCK)


def two_steps(count: int = 60_000) -> float:
    """The first two tokens that block verification emits in one or two steps, against the product of the laws.

    Whether a step of two drafts ends after one token depends on its second draft too, which the next step draws again.
    """
    target, draft = logits_of(4, 6), logits_of(4, 7)
    rows = sampler.SamplingRows.of([BLOCK] * count, range(count))
    start = torch.full((count,), 31)
    first, second = (block_step(target, draft, rows, start + offset) for offset in (0, 1))
    after = torch.where(first[:, 1] >= 0, first[:, 1], second[:, 0])
    law = exact_law(target.tolist(), BLOCK)
    cells = torch.bincount(first[:, 0] * 4 + after, minlength=16)
    return chi_square(cells.tolist(), [a * b for a in law for b in law])


def block_step(target: Tensor, draft: Tensor, rows: sampler.SamplingRows, start: Tensor) -> Tensor:
    """Emitted int64 [B, 3] of a step of two drafts whose first token stands at `start`."""
    count = len(start)
    chosen = [
        sampler.choose_drafts(draft.expand(count, -1), start + place, rows, start) for place in range(2)
    ]
    tokens, candidates, q = (torch.stack(part, 1) for part in zip(*chosen, strict=True))
    proposal = Proposal(tokens, torch.full((count,), 2), candidates, q)
    return sampler.verify(target.expand(count, 3, -1), proposal, rows, start).emitted


def test_a_step_draws_numbers_that_no_other_step_has_seen() -> None:
    assert two_steps() < CRITICAL_15


def test_a_step_that_draws_the_last_ones_numbers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = random.uniform
    for module in (fast_verify, drafting):
        monkeypatch.setattr(
            module,
            "uniform",
            lambda seeds, positions, stream, steps: keyed(seeds, positions, stream, steps * 0),
        )
    assert two_steps() > CRITICAL_15
