"""The law of a row: reference and device against the definition, tie rules, broken rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ft.contracts.law.exact import exact_law
from ft.fast import sampler, sampling
from ft.reference import sampling as reference
from ft.reference.types import Sampling, Verification

REJECTION = Verification.REJECTION


def fast_law(logits: Tensor, samplings: list[Sampling]) -> Tensor:
    return sampler.law(logits, sampler.SamplingRows.of(samplings, [0] * len(samplings)))


def both(logits: list[float], sampling: Sampling) -> tuple[list[float], list[float]]:
    row = torch.tensor(logits)
    return reference.law(row, sampling).tolist(), fast_law(row[None], [sampling])[0].tolist()


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 20, 1000]),
    top_p=st.sampled_from([0.01, 0.37, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 1.0]),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(samplings, min_size=1, max_size=4), st.integers(1, 70), st.integers(0, 2**31), st.booleans())
def test_laws_agree_with_the_definition(
    parameters: list[Sampling], vocabulary: int, seed: int, half: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(parameters), vocabulary, generator=generator)
    logits = logits.bfloat16() if half else logits
    got = fast_law(logits, parameters)
    for row, one, p in zip(logits, parameters, got, strict=True):
        want = torch.tensor(exact_law(row.float().tolist(), one))
        torch.testing.assert_close(reference.law(row, one), want, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(p, want, atol=1e-6, rtol=1e-5)


def test_order_of_stages_matters_and_is_top_k_before_top_p() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    for law in both(logits, Sampling(temperature=1.0, top_k=2, top_p=0.55)):
        assert law == pytest.approx([1.0, 0.0, 0.0, 0.0])
    swapped = exact_law(logits, Sampling(temperature=1.0, top_p=0.55))
    assert sum(p > 0 for p in swapped) == 2


def test_ties() -> None:
    tied = [1.0, 2.0, 2.0, 2.0, 0.0]
    for law in both(tied, Sampling(temperature=1.0, top_k=2)):
        assert law == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])
    for law in both(tied, Sampling(temperature=1.0, top_k=2, top_p=0.5)):
        assert law == pytest.approx([0, 0.5, 0.5, 0, 0])
    for law in both([1.0] * 8, Sampling(temperature=1.0, top_p=0.375)):
        assert law == pytest.approx([1 / 3] * 3 + [0] * 5)
    for law in both(tied, Sampling()):
        assert law == [0, 1, 0, 0, 0]


def test_top_p_of_zero_keeps_the_first() -> None:
    for law in both([1.0, 3.0, 3.0], Sampling(temperature=1.0, top_p=0.0)):
        assert law == [0, 1, 0]


@pytest.mark.parametrize("mode", [Verification.GREEDY, REJECTION])
@pytest.mark.parametrize(
    ("logits", "best", "broken"),
    [
        ([math.nan] * 3, 0, True),
        ([-math.inf] * 3, 0, True),
        ([math.nan, 1.0, 9.0], 2, True),
        ([math.inf, 1.0, 9.0], 2, True),
        ([-math.inf, 1.0, 9.0], 2, False),
    ],
)
def test_broken_rows_have_a_law_and_a_flag(
    mode: Verification, logits: list[float], best: int, broken: bool
) -> None:
    parameters = Sampling(temperature=0.01 if mode else 0.0)
    for law in both(logits, parameters):
        assert law[best] == pytest.approx(1.0) and sum(law) == pytest.approx(1.0)
    assert reference.sanitised(torch.tensor(logits))[1] is broken
    assert sampling.sanitised(torch.tensor([logits]))[1].tolist() == [broken]


def test_draws_end_at_the_last_token_with_mass() -> None:
    mass = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    for u, token in ((0.0, 1), (0.499, 1), (0.5, 3), (1 - 2**-24, 3), (1.0, 3)):
        assert reference.draw(mass, torch.tensor(u)) == token
        assert sampling.draw(sampling.units(mass)[None], torch.tensor([u])).tolist() == [token]


def test_promises_about_a_batch_change_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 33, generator=generator)
    parameters = [Sampling(temperature=0.8, min_p=0.01)] * 4
    plain = sampler.SamplingRows.of(parameters, [1, 2, 3, 4])
    assert not plain.filtered and plain.modes == {REJECTION}
    filtered = sampler.SamplingRows.of([*parameters[:3], Sampling(temperature=0.8, top_k=2)], [1, 2, 3, 4])
    assert torch.equal(sampler.law(logits, plain)[:3], sampler.law(logits, filtered)[:3])
    assert not torch.equal(sampler.law(logits, plain)[3], sampler.law(logits, filtered)[3])


def test_seeds_keep_their_bits() -> None:
    for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1, -1):
        assert sampling.signed(seed) % 2**64 == seed % 2**64
        assert -(2**63) <= sampling.signed(seed) < 2**63
