"""Text streams: the deltas of every cut into runs join to one text, and stops cut where they should."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft.fast.text.stream import Piece, TextStream
from ft.fast.text.tokenizer import Tokenizer

from .stored import FOLDER

TOKENIZER = Tokenizer.load(FOLDER)
END = 258
WIDE = "né😀漢"


SINGLE = {TOKENIZER.piece(token): token for token in range(256)}


def by_byte(text: str) -> list[int]:
    """One token a byte, whatever the vocabulary would merge."""
    return [SINGLE[bytes([byte])] for byte in text.encode()]


class Stream(Protocol):
    def push(self, run: Sequence[int]) -> Piece: ...
    def finish(self) -> Piece: ...


Factory = Callable[..., Stream]


def runs(tokens: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    """The tokens in runs of these sizes, the last size again and again."""
    found, start, pending = [], 0, list(sizes) or [1]
    while start < len(tokens):
        size = pending.pop(0) if len(pending) > 1 else pending[0]
        found.append(tokens[start : start + size])
        start += size
    return found


def collect(stream: Stream, pieces: Sequence[Sequence[int]]) -> tuple[list[str], int, bool]:
    """Deltas, tokens of the output and whether a stop ended it."""
    deltas, kept = [], 0
    for run in pieces:
        piece = stream.push(run)
        deltas.append(piece.text)
        kept += piece.tokens
        if piece.stopped:
            return deltas, kept, True
    last = stream.finish()
    return [*deltas, last.text], kept, last.stopped


def defined(text: str, stops: Sequence[str]) -> str:
    """What stop strings leave of a text, by trying each end."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def check_wide(factory: Factory) -> None:
    """Every cut of a text of wide characters into two runs and into equal runs."""
    tokens = by_byte(WIDE)
    sizes = [[size] for size in range(1, len(tokens) + 1)]
    sizes += [[first, len(tokens)] for first in range(1, len(tokens))]
    for choice in sizes:
        deltas, kept, stopped = collect(factory(TOKENIZER), runs(tokens, choice))
        assert "".join(deltas) == WIDE
        assert all("\ufffd" not in delta for delta in deltas)
        assert (kept, stopped) == (len(tokens), False)


def check_stop(factory: Factory) -> None:
    """A stop string inside a run, and over every border between two runs."""
    tokens = by_byte("ab STOP cdefghij")
    for first in range(1, len(tokens)):
        deltas, kept, stopped = collect(factory(TOKENIZER, ["STOP"]), runs(tokens, [first, len(tokens)]))
        assert "".join(deltas) == "ab "
        assert (kept, stopped) == (7, True)


def test_wide_characters_at_every_split() -> None:
    """Catches half a character shown as U+FFFD at the border of a run."""
    check_wide(TextStream)


def test_stop_strings_at_every_split() -> None:
    """Catches a stop that only the tail of a run is searched for, and one that a border hides."""
    check_stop(TextStream)


class RunByRun(TextStream):
    """Wrong: decodes each run on its own, and searches stops in one run only."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        super().__init__(tokenizer, stop)
        self.tokenizer, self.stop = tokenizer, stop

    def push(self, run: Sequence[int]) -> Piece:
        stream = TextStream(self.tokenizer, self.stop)
        piece = stream.push(run)
        return piece if piece.stopped else Piece(piece.text + stream.finish().text, piece.tokens, False)


@pytest.mark.parametrize("check", [check_wide, check_stop])
def test_the_checks_find_a_stream_that_forgets(check: Callable[[Factory], None]) -> None:
    with pytest.raises(AssertionError):
        check(RunByRun)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 266), max_size=40), st.lists(st.integers(1, 9), max_size=8))
def test_any_run_of_ids_joins_to_the_whole_decode(tokens: list[int], sizes: list[int]) -> None:
    """Catches bytes lost, doubled or replaced at a border, also where they are no UTF-8."""
    deltas, kept, stopped = collect(TextStream(TOKENIZER), runs(tokens, sizes))
    assert "".join(deltas) == TOKENIZER.decode(tokens)
    assert (kept, stopped) == (len(tokens), False)


@settings(max_examples=300, deadline=None)
@given(
    st.text("abé", max_size=30),
    st.lists(st.text("abé", min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(1, 9), max_size=8),
)
def test_stop_strings_against_their_definition(text: str, stops: list[str], sizes: list[int]) -> None:
    """Catches a partial match that is shown too early or dropped, and a stop missed after a false start."""
    tokens = by_byte(text)
    deltas, kept, stopped = collect(TextStream(TOKENIZER, stops), runs(tokens, sizes))
    left = defined(text, stops)
    assert "".join(deltas) == left
    assert stopped == any(stop in text for stop in stops)
    if stopped:
        assert TOKENIZER.decode(tokens[:kept]).startswith(left)
        assert any(TOKENIZER.decode(tokens[:kept]).endswith(stop) for stop in stops)


def test_every_short_stop_in_every_short_text() -> None:
    """Catches a match that is lost because an earlier start turned out to be false."""
    for stop in words(4):
        for text in words(7):
            deltas, _, stopped = collect(TextStream(TOKENIZER, [stop]), runs(by_byte(text), [1]))
            assert ("".join(deltas), stopped) == (defined(text, [stop]), stop in text)


def words(longest: int) -> list[str]:
    """All words of a and b up to a length."""
    return ["".join(letters) for size in range(1, longest + 1) for letters in product("ab", repeat=size)]


def test_nothing_more_is_held_back_than_a_stop_could_swallow() -> None:
    """Catches a stream that waits without need."""
    stream = TextStream(TOKENIZER, ["abc"])
    assert [stream.push([token]).text for token in by_byte("xaabxab")] == ["x", "", "a", "", "abx", "", ""]
    assert stream.finish() == Piece("ab", 0, False)


def test_a_stop_id_ends_the_text_and_is_not_in_it() -> None:
    """Catches tokens after an id that was accepted in the middle of a run."""
    stream = TextStream(TOKENIZER, stop_ids=(END,))
    assert stream.push([*by_byte("ab"), END, *by_byte("cd")]) == Piece("ab", 3, True)
    assert stream.push(by_byte("ef")) == Piece("", 0, True)
    assert stream.finish() == Piece("", 0, True)


def test_a_stop_id_releases_what_was_held_back() -> None:
    stream = TextStream(TOKENIZER, ["abc"], (END,))
    assert stream.push([*by_byte("xab"), END]) == Piece("xab", 4, True)


def test_special_tokens_are_not_text() -> None:
    assert TextStream(TOKENIZER).push([257, *by_byte("a"), END, *by_byte("b")]).text == "ab"


def test_half_a_character_at_the_end_is_shown_as_one() -> None:
    """Catches a crash, or bytes lost, where max_tokens cuts a character."""
    stream = TextStream(TOKENIZER)
    assert stream.push(by_byte("a漢")[:-1]).text == "a"
    assert stream.finish() == Piece("\ufffd", 0, False)
