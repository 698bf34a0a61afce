"""Cuts: stops, budgets and the context inside a run; the device against the reference."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ft.fast import cut as fast
from ft.reference.cut import Finish, cut

CODES = {None: fast.FINISH_NONE, "stop": fast.FINISH_STOP, "length": fast.FINISH_LENGTH}
runs = st.lists(st.integers(0, 6), min_size=1, max_size=6)
stops = st.lists(st.integers(0, 6), max_size=3)


def token_by_token(
    emitted: list[int], stop_ids: list[int], generated: int, max_tokens: int, committed: int, context: int
) -> tuple[int, Finish | None]:
    """Plain decoding: emit one, then ask whether the request goes on. Holds `committed + 1` tokens at first."""
    held = committed + 1
    for number, token in enumerate(emitted, start=1):
        generated, held = generated + 1, held + 1
        if token in stop_ids:
            return number, "stop"
        if generated == max_tokens or held == context:
            return number, "length"
    return len(emitted), None


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[int], int, int, int, int]:
    """A run with limits that were not reached before it."""
    generated = draw(st.integers(0, 5))
    committed = draw(st.integers(0, 9))
    return (
        draw(runs),
        draw(stops),
        generated,
        generated + draw(st.integers(1, 8)),
        committed,
        committed + 1 + draw(st.integers(1, 8)),
    )


@settings(max_examples=400, deadline=None, derandomize=True)
@given(cases())
def test_the_reference_cuts_as_plain_decoding_does(
    case: tuple[list[int], list[int], int, int, int, int],
) -> None:
    kept, finish = cut(*case)
    assert (kept, finish) == token_by_token(*case)
    assert 1 <= kept <= len(case[0])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(cases(), min_size=1, max_size=5))
def test_the_device_cuts_as_the_reference_does(
    batch: list[tuple[list[int], list[int], int, int, int, int]],
) -> None:
    context = 12
    width = max(len(case[0]) for case in batch) + 1
    emitted = torch.full((len(batch), width), -1)
    stop_ids = torch.full((len(batch), 4), -1)
    for index, (run, ids, *_) in enumerate(batch):
        emitted[index, : len(run)] = torch.tensor(run)
        stop_ids[index, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    accepted = torch.tensor([len(case[0]) - 1 for case in batch])
    generated, max_tokens, committed = (torch.tensor([case[part] for case in batch]) for part in (2, 3, 4))
    kept, code = fast.cut(emitted, accepted, stop_ids, generated, max_tokens, committed, context)
    for index, case in enumerate(batch):
        want, finish = cut(*case[:5], context)
        assert (int(kept[index]), int(code[index])) == (want, CODES[finish])


def test_named_cases() -> None:
    assert cut([1, 2, 3], [2], 0, 10, 0, 99) == (2, "stop")
    assert cut([1, 2, 3], [], 4, 6, 0, 99) == (2, "length")
    assert cut([1, 2, 3], [2], 4, 6, 0, 99) == (2, "stop"), "a stop wins at the same token"
    assert cut([1, 2, 3], [3], 4, 6, 0, 99) == (2, "length"), "a stop beyond the cut is not seen"
    assert cut([1, 2, 3], [], 0, 10, 5, 8) == (2, "length"), "6 tokens held, 8 allowed"
    assert cut([1, 2, 3], [9], 0, 10, 0, 99) == (3, None)


def test_a_cut_one_token_late_is_caught() -> None:
    def late(
        emitted: list[int], stop_ids: list[int], generated: int, max_tokens: int, committed: int, context: int
    ) -> tuple[int, Finish | None]:
        return cut(emitted, stop_ids, generated - 1, max_tokens, committed - 1, context)

    case = ([1, 2, 3], [9], 4, 6, 0, 99)
    assert late(*case) != token_by_token(*case)
