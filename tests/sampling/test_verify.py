"""Verdicts: the device against the reference, the rule of rows, broken rows, drafts and their laws."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ft.fast import sampler
from ft.fast import verify as fast_verify
from ft.fast.random import gumbel
from ft.reference.drafting import CANDIDATES, DraftChooser, choose_draft
from ft.reference.edits import RequestLaw
from ft.reference.types import Proposal, Sampling, Verification
from ft.reference.verify import verify

GREEDY = Sampling()
REJECTION = Sampling(temperature=0.8, top_p=0.95)
COUPLED = Sampling(temperature=0.9, top_k=12, seed=11)
SAMPLINGS = [
    GREEDY,
    REJECTION,
    COUPLED,
    Sampling(temperature=1.5, min_p=0.02),
    Sampling(temperature=1.1, seed=4),
    Sampling(temperature=1.2, verification=Verification.BLOCK),
]


def batch(seed: int, requests: int, drafts: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Target logits [B, k+1, V], draft logits [B, k, V] close to them, counts [B]."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(requests, drafts + 1, vocabulary, generator=generator)
    near = logits[:, :-1] + torch.randn(requests, drafts, vocabulary, generator=generator)
    return logits, near, torch.randint(0, drafts + 1, (requests,), generator=generator)


def propose(draft_logits: Tensor, rows: sampler.SamplingRows, positions: Tensor, counts: Tensor) -> Proposal:
    """Drafts of every row from draft logits [B, k, V], as a proposer would choose them."""
    chosen = [
        sampler.choose_drafts(draft_logits[:, row], positions + row, rows, positions)
        for row in range(draft_logits.shape[1])
    ]
    tokens, candidates, q = (torch.stack(part, 1) for part in zip(*chosen, strict=True))
    return Proposal(tokens, counts, candidates, q)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(SAMPLINGS), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(2, 90),
    st.integers(0, 2**31),
)
def test_fast_verdicts_equal_the_references(
    samplings: list[Sampling], drafts: int, vocabulary: int, seed: int
) -> None:
    logits, near, counts = batch(seed, len(samplings), drafts, vocabulary)
    seeds = [(seed * 7919 + index) << 20 for index in range(len(samplings))]
    rows = sampler.SamplingRows.of(samplings, seeds)
    positions = torch.arange(len(samplings)) * 13 + seed % 1000
    proposal = propose(near, rows, positions, counts)
    judged = sampler.verify(logits, proposal, rows, positions)
    for index, (sampling, own) in enumerate(zip(samplings, seeds, strict=True)):
        count = int(counts[index])
        assert proposal.candidates is not None and proposal.q is not None
        for row in range(drafts):
            choice = choose_draft(
                near[index, row], sampling, own, int(positions[index]) + row, int(positions[index])
            )
            assert choice.token == int(proposal.tokens[index, row])
            if choice.candidates is not None and choice.q is not None:
                torch.testing.assert_close(proposal.q[index, row], choice.q, atol=1e-6, rtol=0)
                shown = choice.q > 0
                assert torch.equal(proposal.candidates[index, row][shown], choice.candidates[shown])
        want = verify(
            logits[index, : count + 1],
            proposal.tokens[index, :count].tolist(),
            sampling,
            own,
            int(positions[index]),
            proposal.candidates[index],
            proposal.q[index],
        )
        assert int(judged.accepted[index]) == want.accepted
        assert judged.emitted[index].tolist() == [*want.emitted, *[-1] * (drafts - want.accepted)]
        assert not judged.failed[index] and not any(want.broken)


def run(samplings: list[Sampling], keep: slice, width: int | None = None) -> sampler.Judged:
    """Verdicts of the requests `keep` of one fixed batch, alone, over their first `width` rows."""
    logits, near, counts = batch(5, len(samplings), 5, 1003)
    rows = sampler.SamplingRows.of(samplings[keep], list(range(len(samplings)))[keep])
    positions = torch.arange(len(samplings))[keep] * 7
    proposal = propose(near[keep], rows, positions, counts[keep])
    if width is not None:
        parts = (proposal.tokens, proposal.candidates, proposal.q)
        tokens, candidates, q = (None if part is None else part[:, : width - 1] for part in parts)
        assert tokens is not None
        proposal = Proposal(tokens, counts[keep].clamp(max=width - 1), candidates, q)
    return sampler.verify(logits[keep, :width], proposal, rows, positions)


def test_rows_depend_on_no_neighbour() -> None:
    samplings = SAMPLINGS * 3
    together = run(samplings, slice(None))
    for index in range(len(samplings)):
        alone = run(samplings, slice(index, index + 1))
        assert torch.equal(alone.emitted[0], together.emitted[index])


@pytest.mark.parametrize("vocabulary", [7, 1003, 4096])
def test_laws_and_scores_have_the_same_bits_in_every_batch(vocabulary: int) -> None:
    logits, _, _ = batch(3, 18, 1, vocabulary)
    rows = sampler.SamplingRows.of(SAMPLINGS * 3, list(range(18)))
    together = sampler.law(logits[:, 1], rows)
    for index, sampling in enumerate(SAMPLINGS * 3):
        alone = sampler.law(logits[index : index + 1, 1], sampler.SamplingRows.of([sampling], [index]))
        assert torch.equal(alone[0], together[index])


@pytest.mark.parametrize("vocabulary", [7, 1003, 40961])
def test_noise_has_the_same_bits_in_every_batch(vocabulary: int) -> None:
    seeds, positions = torch.arange(9) << 33, torch.arange(9) * 5
    together = gumbel(seeds, positions, vocabulary)
    for index in range(9):
        one = slice(index, index + 1)
        assert torch.equal(gumbel(seeds[one], positions[one], vocabulary)[0], together[index])


def test_a_shorter_run_of_rows_gives_the_same_tokens_as_far_as_it_goes() -> None:
    coupled = [COUPLED, GREEDY] * 4
    long, short = run(coupled, slice(None)), run(coupled, slice(None), width=1)
    assert torch.equal(long.emitted[:, :1], short.emitted)


def test_one_hot_q_is_a_point_mass() -> None:
    logits, near, counts = batch(9, 64, 3, 6)
    rows = sampler.SamplingRows.of([REJECTION] * 64, list(range(64)))
    positions = torch.zeros(64, dtype=torch.int64)
    tokens = near.argmax(-1)
    q = torch.zeros(64, 3, 4)
    q[..., 0] = 1
    candidates = tokens[..., None].repeat(1, 1, 4)
    bare = sampler.verify(logits, Proposal(tokens, counts), rows, positions)
    marked = sampler.verify(logits, Proposal(tokens, counts, candidates, q), rows, positions)
    assert torch.equal(bare.emitted, marked.emitted)
    other = sampler.verify(logits, Proposal(tokens, counts, candidates, q / 4 + 0.1875), rows, positions)
    assert torch.equal(bare.emitted, other.emitted), "equal candidates add up to the same point mass"
    halved = torch.where(torch.arange(4) < 2, 0.5, 0.0).expand(64, 3, 4)
    spread = candidates + torch.tensor([0, 1, 0, 0])
    wrong = sampler.verify(logits, Proposal(tokens, counts, spread % 6, halved), rows, positions)
    assert not torch.equal(bare.emitted, wrong.emitted)


def test_no_residual_left_falls_back_to_p() -> None:
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]])
    sampling = Sampling(temperature=1.0)
    rows = sampler.SamplingRows.of([sampling], [0])
    half = torch.tensor([[[0.5, 0.5]]])
    ids = torch.tensor([[[0, 1]]])
    uniforms = sampler.Uniforms(torch.tensor([[1.0]]), torch.tensor([0.75]))
    judged = sampler.verify(
        logits, Proposal(torch.tensor([[0]]), torch.tensor([1]), ids, half), rows, torch.tensor([1]), uniforms
    )
    assert judged.emitted.tolist() == [[1, -1]]


@pytest.mark.parametrize("sampling", [GREEDY, REJECTION, COUPLED])
def test_broken_rows_flag_their_own_request_and_only_when_they_decide(sampling: Sampling) -> None:
    logits, _, _ = batch(1, 3, 2, 9)
    right = torch.stack([logits[:, row].argmax(-1) for row in range(2)], 1)
    sharp = replace(sampling, temperature=sampling.temperature * 1e-3)
    logits[0, 0] = torch.nan
    logits[1, 2] = torch.nan
    tokens = right.clone()
    tokens[0, 0] = 5
    tokens[1, 0] = (right[1, 0] + 1) % 9
    rows = sampler.SamplingRows.of([sharp] * 3, [1, 2, 3])
    positions = torch.tensor([4, 5, 6])
    judged = sampler.verify(logits, Proposal(tokens, torch.full((3,), 2)), rows, positions)
    assert judged.failed.tolist() == [True, False, False]
    assert judged.emitted[0].tolist() == [0, -1, -1]
    late = sampler.verify(logits, Proposal(right, torch.full((3,), 2)), rows, positions)
    assert late.failed.tolist() == [True, True, False]
    assert late.failed_within(torch.tensor([1, 2, 3])).tolist() == [True, False, False]
    for index in range(3):
        want = verify(logits[index], tokens[index].tolist(), sharp, index + 1, index + 4)
        assert any(want.broken) == bool(judged.failed[index])


def test_logits_must_have_one_row_more_than_drafts() -> None:
    with pytest.raises(ValueError, match="2 drafts"):
        sampler.verify(
            torch.zeros(1, 2, 4),
            Proposal(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2])),
            sampler.SamplingRows.of([GREEDY], [0]),
            torch.tensor([1]),
        )
    with pytest.raises(ValueError, match="2 drafts"):
        verify(torch.zeros(2, 4), [1, 2], GREEDY, 0, 1)


def test_the_chooser_gives_each_slot_its_own_parameters() -> None:
    _, near, _ = batch(2, 3, 1, 80)
    chooser = DraftChooser({4: RequestLaw(GREEDY, 1), 2: RequestLaw(REJECTION, 2), 9: RequestLaw(COUPLED, 3)})
    positions, slots = torch.tensor([5, 6, 7]), torch.tensor([2, 9, 4])
    none = torch.zeros(3, 0, dtype=torch.int64)
    tokens, candidates, q = chooser.choose(near[:, 0], positions, slots, none)
    rows = sampler.SamplingRows.of([REJECTION, COUPLED, GREEDY], [2, 3, 1])
    want = sampler.choose_drafts(near[:, 0], positions, rows, positions)
    assert candidates is not None and q is not None and candidates.shape == q.shape
    assert candidates.shape == (3, min(CANDIDATES, near.shape[-1]))
    assert torch.equal(tokens, want[0])
    torch.testing.assert_close(q, want[2], atol=1e-6, rtol=0)
    alone = chooser.choose(near[1:, 0], positions[1:], slots[1:], none[1:])
    assert alone[1] is None and alone[2] is None and torch.equal(alone[0], tokens[1:])


def test_comparison_catches_a_coin_from_the_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, near, _ = batch(8, 40, 3, 12)
    rows = sampler.SamplingRows.of([REJECTION] * 40, list(range(40)))
    positions, counts = torch.arange(40), torch.full((40,), 3)
    proposal = propose(near, rows, positions, counts)
    right = sampler.verify(logits, proposal, rows, positions)
    true_coins = fast_verify.coins_of
    monkeypatch.setattr(
        fast_verify, "coins_of", lambda rows, positions, drafts: true_coins(rows, positions + 1, drafts)
    )
    assert not torch.equal(right.emitted, sampler.verify(logits, proposal, rows, positions).emitted)


def test_work_in_parts_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, near, counts = batch(6, 12, 5, 1003)
    rows = sampler.SamplingRows.of(SAMPLINGS * 2, list(range(12)))
    positions = torch.arange(12)
    proposal = propose(near, rows, positions, counts)
    whole = sampler.verify(logits, proposal, rows, positions)
    token, p, _ = fast_verify.decide_rows(logits, rows, positions[:, None] + torch.arange(6))
    for elements in (1, 4 * 12 * 1003):
        monkeypatch.setattr(fast_verify, "ELEMENTS", elements)
        assert torch.equal(sampler.verify(logits, proposal, rows, positions).emitted, whole.emitted)
    for row in range(6):
        alone = fast_verify.decide(logits[:, row], rows, positions + row)
        assert p is not None and alone[1] is not None
        assert torch.equal(alone[0], token[:, row]) and torch.equal(alone[1], p[:, row])


def test_only_the_modes_of_a_batch_are_computed_and_change_nothing() -> None:
    logits, near, counts = batch(4, 2, 2, 20)
    for sampling in (GREEDY, REJECTION, COUPLED):
        rows = sampler.SamplingRows.of([sampling] * 2, [1, 2])
        wide = replace(rows, modes=frozenset(Verification), filtered=True)
        positions = torch.tensor([3, 9])
        drafts, all_drafts = (propose(near, one, positions, counts) for one in (rows, wide))
        assert torch.equal(drafts.tokens, all_drafts.tokens)
        narrow = sampler.verify(logits, drafts, rows, positions)
        assert torch.equal(narrow.emitted, sampler.verify(logits, all_drafts, wide, positions).emitted)
