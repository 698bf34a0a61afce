"""Grammars as masks: what they allow becomes valid text, drafts leave no trace, bad sources are named."""

import json
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from ft.fast import demo
from ft.fast.text.grammar import (
    KEPT_GRAMMARS,
    GrammarCompiler,
    GrammarError,
    GrammarKind,
    GrammarSpec,
    Matcher,
)
from ft.fast.text.tokenizer import Tokenizer

VOCABULARY = 4101
"""More than the tokenizer has, and no multiple of a word."""

TOKENIZER = Tokenizer.load(demo.FOLDER)
TOKENIZER_SIZE = 4096
STOPS = TOKENIZER.stop_ids
COMPILER = GrammarCompiler(demo.FOLDER / "tokenizer.json", VOCABULARY, STOPS)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["x", "yy"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "inner": {"type": "object", "properties": {"ok": {"type": "null"}}, "additionalProperties": False},
    },
    "required": ["name", "size", "flags", "inner"],
    "additionalProperties": False,
}
PATTERN = "[a-c]{3,6}(x|yy)?"


def fits_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "size", "flags", "inner"]
        and value["name"] in ("x", "yy")
        and 0 <= value["size"] <= 99
        and len(value["flags"]) <= 3
        and all(isinstance(flag, bool) for flag in value["flags"])
        and set(value["inner"]) <= {"ok"}
    )


SPECS: dict[str, tuple[GrammarSpec, Callable[[str], bool]]] = {
    "schema": (GrammarSpec.schema(SCHEMA), fits_schema),
    "regex": (GrammarSpec(GrammarKind.REGEX, PATTERN), lambda text: bool(re.fullmatch(PATTERN, text))),
    "object": (GrammarSpec(GrammarKind.JSON_OBJECT), lambda text: isinstance(json.loads(text), dict)),
}


def ids(mask: Tensor) -> list[int]:
    """Allowed ids; no bit beyond the tokenizer may be set."""
    bits = (mask[:, None] >> torch.arange(32)) & 1
    found: list[int] = torch.nonzero(bits.flatten())[:, 0].tolist()
    assert all(token < TOKENIZER_SIZE for token in found)
    return found


def walk(matcher: Matcher, seed: int) -> list[int]:
    """A text of allowed tokens, which ends as soon as it may; `}` and `"` come early in what may be endless."""
    draw, text = random.Random(seed), list[int]()
    while True:
        may = ids(matcher.row(()))
        assert may, f"nothing may follow {TOKENIZER.decode(text)!r}"
        if set(may) & set(STOPS):
            assert matcher.accept([STOPS[0]]) and matcher.finished
            return text
        short = [token for token in may if TOKENIZER.piece(token) in (b'"', b"}", b'"}', b'": ', b"1")]
        token = draw.choice(short if len(text) > 12 and short else may)
        assert matcher.accept([token])
        text.append(token)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_allowed_is_valid(name: str, seed: int) -> None:
    spec, valid = SPECS[name]
    text = TOKENIZER.decode(walk(COMPILER.matcher(spec), seed))
    assert valid(text), text


class Forgetful(Matcher):
    """Fault: drafts stay."""

    def _take_back(self, taken: int) -> None:
        self._emitted += [0] * taken


class OneShort(Matcher):
    """Fault: one draft too few is taken back."""

    def _take_back(self, taken: int) -> None:
        super()._take_back(max(0, taken - 1))


class OneMask(Matcher):
    """Fault: every row has the mask of the first."""

    def rows(self, drafts: Sequence[int]) -> Tensor:
        return self.row(()).repeat(len(drafts) + 1, 1)


class Strict(Matcher):
    """Fault: rows that decide nothing allow nothing."""

    def rows(self, drafts: Sequence[int]) -> Tensor:
        rows = super().rows(drafts)
        return torch.where((rows == everything()).all(-1, keepdim=True), 0, rows)


def expected_rows(spec: GrammarSpec, output: Sequence[int], drafts: Sequence[int]) -> Tensor:
    """By fresh matchers that take tokens in and are never asked to take one back."""
    rows = []
    for width in range(len(drafts) + 1):
        fresh = COMPILER.matcher(spec)
        legal = not set(drafts[:width]) & set(STOPS) and fresh.accept([*output, *drafts[:width]])
        rows.append(fresh.row(()) if legal else everything())
    return torch.stack(rows)


def check_drafts_leave_no_trace(matcher: Matcher, text: Sequence[int], spec: GrammarSpec) -> None:
    """At every place of a valid text, for drafts that are legal, illegal at each place, past the end, or have a stop
    id inside: rows are those of fresh matchers, and asking changes nothing."""
    for place in range(len(text) + 1):
        ahead = list(text[place : place + 3])
        broken = [[*ahead[:at], VOCABULARY - 1, *ahead[at + 1 :]] for at in range(len(ahead))]
        stopped = [[*ahead[:at], STOPS[-1], *ahead[at:]] for at in range(len(ahead) + 1)]
        past = [[*text[place:], *text[:2]], [*text[place:], STOPS[0], text[0], STOPS[0]]]
        for drafts in ([], ahead, *broken, *stopped, *past):
            before = matcher.row(())
            rows = matcher.rows(drafts)
            assert torch.equal(matcher.row(()), before), "asking moved the state"
            assert torch.equal(rows, expected_rows(spec, text[:place], drafts))
            assert torch.equal(matcher.row(drafts), rows[-1])
        if place < len(text):
            assert matcher.accept([text[place]])


def everything() -> Tensor:
    mask = torch.full((-(-VOCABULARY // 32),), -1, dtype=torch.int32)
    mask[-1] = (1 << VOCABULARY % 32) - 1
    return mask


@pytest.mark.parametrize("name", SPECS)
def test_drafts_leave_no_trace(name: str) -> None:
    spec, _ = SPECS[name]
    text = walk(COMPILER.matcher(spec), 1)
    check_drafts_leave_no_trace(COMPILER.matcher(spec), text, spec)


@pytest.mark.parametrize("twin", [Forgetful, OneShort, OneMask, Strict])
def test_a_wrong_matcher_is_caught(twin: type[Matcher]) -> None:
    spec, _ = SPECS["regex"]
    text = walk(COMPILER.matcher(spec), 1)
    wrong = twin(COMPILER.matcher(spec)._start, VOCABULARY, STOPS)
    with pytest.raises(AssertionError):
        check_drafts_leave_no_trace(wrong, text, spec)


def test_a_hundred_rounds_of_drafts_leave_the_state() -> None:
    spec, _ = SPECS["schema"]
    text, matcher, draw = walk(COMPILER.matcher(spec), 2), COMPILER.matcher(spec), random.Random(0)
    assert matcher.accept(text[:3])
    before = matcher.row(())
    for _ in range(100):
        drafts = [
            *text[3 : 3 + draw.randrange(9)],
            *(draw.randrange(VOCABULARY) for _ in range(draw.randrange(3))),
        ]
        matcher.rows(drafts)
        assert torch.equal(matcher.row(()), before)
    assert matcher.accept([*text[3:], STOPS[-1]]) and matcher.finished


def test_a_finished_grammar_allows_stop_ids_only() -> None:
    matcher = COMPILER.matcher(GrammarSpec(GrammarKind.REGEX, "ab"))
    assert matcher.accept(TOKENIZER.encode("ab"))
    assert sorted(ids(matcher.row(()))) == sorted(STOPS)
    assert matcher.row(TOKENIZER.encode("b")).equal(everything())
    assert matcher.finished
    assert not matcher.accept(TOKENIZER.encode("b"))
    assert sorted(ids(matcher.row(()))) == sorted(STOPS)


def test_a_token_that_was_not_allowed_ends_the_grammar() -> None:
    matcher = COMPILER.matcher(GrammarSpec(GrammarKind.REGEX, "ab"))
    assert not matcher.accept(TOKENIZER.encode("x")) and matcher.finished
    assert sorted(ids(matcher.row(()))) == sorted(STOPS)
    early = COMPILER.matcher(GrammarSpec(GrammarKind.REGEX, "ab"))
    assert not early.accept([STOPS[0]]), "a stop id before the text is whole"


def test_a_grammar_that_may_go_on_allows_both() -> None:
    matcher = COMPILER.matcher(GrammarSpec(GrammarKind.REGEX, "a+"))
    assert not set(ids(matcher.row(()))) & set(STOPS)
    assert matcher.accept(TOKENIZER.encode("a"))
    may = set(ids(matcher.row(())))
    assert set(STOPS) < may


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        (GrammarKind.REGEX, "a(", "invalid regex"),
        (GrammarKind.REGEX, "", "empty"),
        (GrammarKind.JSON_SCHEMA, "", "empty"),
        (GrammarKind.JSON_SCHEMA, '{"type": "foo"}', "foo"),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "not": {}}', "not"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#/definitions/nope"}', "nope"),
        (GrammarKind.JSON_SCHEMA, "[1]", "object"),
        (GrammarKind.JSON_SCHEMA, "{", "json_schema"),
        (GrammarKind.JSON_SCHEMA, '{"items": [{"multipleOf": 99999}]}', "multipleOf 99999"),
        (GrammarKind.JSON_SCHEMA, '{"type": "number", "multipleOf": 9999.9999}', "multipleOf 9999.9999"),
        (GrammarKind.JSON_SCHEMA, '{"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}', "997 and 991"),
        (GrammarKind.JSON_SCHEMA, '{"multipleOf": 1e300}', "units"),
        (GrammarKind.JSON_SCHEMA, "[" * 9000, "json_schema"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "no text"),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "pattern": "(?=a)"}', "look-ahead"),
        (GrammarKind.JSON_SCHEMA, '{"if": {}, "then": {}}', "if"),
        (GrammarKind.JSON_SCHEMA, '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        (GrammarKind.JSON_SCHEMA, '{"type": "string", "format": "none"}', "none"),
        (GrammarKind.REGEX, r"[^\s\S]", "no text"),
        (GrammarKind.REGEX, r"\bword", "lookarounds"),
        (GrammarKind.REGEX, "(" * 9000 + "a" + ")" * 9000, "nested"),
        (GrammarKind.REGEX, "\ud800", "surrogates"),
        (GrammarKind.REGEX, "a" * 70_000, "70000"),
    ],
)
def test_a_bad_source_is_named(kind: GrammarKind, source: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        COMPILER.check(GrammarSpec(kind, source))


@pytest.mark.parametrize("multiple", ["0.01", "-5", "99.99", "10000"])
def test_usual_multiples_are_taken(multiple: str) -> None:
    COMPILER.check(GrammarSpec(GrammarKind.JSON_SCHEMA, f'{{"type": "number", "multipleOf": {multiple}}}'))


def test_a_message_stays_short() -> None:
    with pytest.raises(GrammarError) as caught:
        COMPILER.check(GrammarSpec(GrammarKind.REGEX, r"\b" + "a" * 60_000))
    assert len(str(caught.value)) < 500


def test_blanks_cannot_go_on_for_ever() -> None:
    for options in ({}, {"whitespace_pattern": "[ ]+"}, {"whitespace_flexible": True}):
        matcher = COMPILER.matcher(GrammarSpec.schema({"type": "object", "x-guidance": options}))
        assert not matcher.accept(TOKENIZER.encode("{ ")), options


@pytest.mark.parametrize("text", ["[]", "1", '"a"', "null"])
def test_an_object_is_no_other_value(text: str) -> None:
    assert not COMPILER.matcher(SPECS["object"][0]).accept(TOKENIZER.encode(text))


def test_stop_ids_that_spell_text_end_a_whole_text_only() -> None:
    brace = TOKENIZER.encode("}")[0]
    matcher = GrammarCompiler(demo.FOLDER / "tokenizer.json", VOCABULARY, (*STOPS, brace)).matcher(
        GrammarSpec(GrammarKind.REGEX, "a}?")
    )
    assert not matcher.row(())[brace // 32] >> brace % 32 & 1
    assert matcher.accept(TOKENIZER.encode("a"))
    assert {brace, *STOPS} <= set(ids(matcher.row(())))
    assert matcher.accept([brace]) and matcher.finished


WIDE = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(1500)}}
"""More ways to go on than the library's limits let it follow."""


def test_drafts_beyond_the_limits_leave_the_state() -> None:
    """Catches a grammar that is taken for finished, or an engine that dies, once a draft has broken it."""
    spec = GrammarSpec.schema({"anyOf": [{"type": "array", "items": WIDE}, {"type": "integer"}]})
    beyond = TOKENIZER.encode('[{"')
    matcher = COMPILER.matcher(spec)
    before = matcher.row(())
    for _ in range(3):
        assert not set(ids(before)) & set(STOPS)
        matcher.rows(beyond)
        assert torch.equal(matcher.row(()), before)
    taken = COMPILER.matcher(spec)
    assert not taken.accept(beyond), "the request fails and does not end as if it were whole"
    for _ in range(40):
        matcher.row(beyond)
    assert not matcher.row(()).any(), "no token, so the request fails, instead of a restart at every step"
    assert not matcher.accept([STOPS[0]])


def test_a_grammar_that_breaks_at_its_first_token_is_refused() -> None:
    with pytest.raises(GrammarError, match="items"):
        COMPILER.check(GrammarSpec.schema(WIDE))


def test_checked_grammars_are_bounded_and_shared_by_threads() -> None:
    specs = [GrammarSpec(GrammarKind.REGEX, f"a{{{count}}}b") for count in range(1, KEPT_GRAMMARS + 9)]
    with ThreadPoolExecutor(8) as pool:
        matchers = list(pool.map(COMPILER.matcher, specs))
    assert len(COMPILER._checked) <= KEPT_GRAMMARS
    for spec, matcher in zip(specs, matchers, strict=True):
        assert torch.equal(matcher.row(()), COMPILER.matcher(spec).row(()))


def test_a_grammar_beyond_its_limits_allows_nothing_and_raises_nothing() -> None:
    matcher = COMPILER.matcher(GrammarSpec(GrammarKind.REGEX, "(a{1,1000}){1,1000}(b{1,999}){1,999}"))
    for _ in range(30):
        may = ids(matcher.row(()))
        if not may or not matcher.accept([may[-1]]):
            break


def test_structured_output_needs_a_stop_id() -> None:
    with pytest.raises(GrammarError, match="stop id"):
        GrammarCompiler(demo.FOLDER / "tokenizer.json", VOCABULARY, ())


@pytest.mark.parametrize(
    ("vocabulary", "stops", "words"), [(100, (2,), "vocab"), (VOCABULARY, (5000,), "5000")]
)
def test_a_tokenizer_that_does_not_fit_is_named(vocabulary: int, stops: tuple[int, ...], words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        GrammarCompiler(demo.FOLDER / "tokenizer.json", vocabulary, stops)
