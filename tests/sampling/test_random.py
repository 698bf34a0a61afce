"""Philox against its published answers, and the device's numbers against the reference's, bit for bit."""

import numpy as np
import pytest
import torch

from ft.fast import random as fast
from ft.fast.sampling import signed
from ft.reference import random as reference
from ft.reference.types import Sampling, Stream

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

SEEDS = [0, 1, 2**32, 2**63 + 12345, 2**64 - 1, 0x0123456789ABCDEF]
POSITIONS = [0, 1, 7, 2**20, 2**31 + 5, 2**32 - 1]
STEPS = [0, 1, 3, 2**19, 2**31, 2**32 - 2]


def fast_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    return [
        int(word)
        for word in fast.philox((c0, c1, c2, c3), (torch.tensor([key[0]]), torch.tensor([key[1]])))[0]
    ]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    assert tuple(reference.philox(np.array(counter, dtype=np.uint32), key)) == answer
    assert tuple(fast_philox(counter, key)) == answer


@pytest.mark.parametrize(("module", "fault"), [(reference, 9), (fast, 9)])
def test_known_answers_catch_a_missing_round(
    module: object, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUNDS", fault)
    counter, key, answer = KNOWN[2]
    got = reference.philox(np.array(counter, dtype=np.uint32), (key[0], key[1]))
    wrong = tuple(got) if module is reference else tuple(fast_philox(counter, key))
    assert wrong != answer


@pytest.mark.parametrize("stream", list(Stream))
def test_uniforms_are_equal_bit_for_bit(stream: Stream) -> None:
    seeds = torch.tensor([signed(seed) for seed in SEEDS])
    positions = torch.tensor(POSITIONS)
    steps = torch.tensor(STEPS)
    got = fast.uniform(seeds, positions, stream, steps)
    for index, (seed, position, step) in enumerate(zip(SEEDS, POSITIONS, STEPS, strict=True)):
        want = reference.uniform(seed, position, stream, step)
        assert torch.equal(got[index], want) and got.dtype == want.dtype
        for wrong in (
            reference.uniform(seed, position ^ 1, stream, step),
            reference.uniform(seed, position, stream, step ^ 1),
        ):
            assert not torch.equal(got[index], wrong)


@pytest.mark.parametrize("vocabulary", [1, 3, 4, 5, 1025])
def test_gumbel_inputs_are_equal_bit_for_bit(vocabulary: int) -> None:
    seeds = torch.tensor([signed(seed) for seed in SEEDS])
    positions = torch.tensor(POSITIONS)
    got = fast.open_uniform(seeds, positions, Stream.COUPLED, vocabulary)
    noise = fast.gumbel(seeds, positions, vocabulary)
    for index, (seed, position) in enumerate(zip(SEEDS, POSITIONS, strict=True)):
        assert torch.equal(got[index], reference.open_uniform(seed, position, Stream.COUPLED, vocabulary))
        torch.testing.assert_close(noise[index], reference.gumbel(seed, position, vocabulary))


def test_streams_positions_and_seeds_give_other_numbers() -> None:
    seen = {
        float(reference.uniform(seed, position, stream, step))
        for seed in (3, 3 + 2**32)
        for position in range(50)
        for stream in Stream
        for step in (1, position + 1)
    }
    assert len(seen) == 2 * (50 * 2 - 1) * len(Stream)


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 200, 2**32 - 1])
def test_edges_of_the_ranges(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "words", lambda *_: np.array([word], dtype=np.uint32))
    monkeypatch.setattr(fast, "words", lambda *_: torch.tensor([[word]]))
    one = torch.tensor([0])
    for u in (reference.uniform(0, 0, Stream.COIN, 1), fast.uniform(one, one, Stream.COIN, one)[0]):
        assert 0.0 <= float(u) < 1.0
    inside = reference.open_uniform(0, 0, Stream.COUPLED, 1)
    assert 0.0 < float(inside[0]) < 1.0
    assert torch.equal(fast.open_uniform(one, one, Stream.COUPLED, 1)[0], inside)
    assert torch.isfinite(reference.gumbel(0, 0, 1)).all()
    assert torch.isfinite(fast.gumbel(one, one, 1)).all()


def test_uniforms_are_uniform() -> None:
    positions = torch.arange(200_000) % 1000
    u = fast.uniform(torch.arange(200_000), positions, Stream.COIN, positions)
    counts = torch.bincount((u * 16).long(), minlength=16).double()
    assert float(((counts - 12_500) ** 2 / 12_500).sum()) < 56.5


def test_a_request_without_a_seed_gets_a_fresh_one() -> None:
    assert reference.request_seed(Sampling(seed=5)) == 5
    assert reference.request_seed(Sampling()) != reference.request_seed(Sampling())
