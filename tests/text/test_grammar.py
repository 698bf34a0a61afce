"""Grammars as masks: what they allow becomes valid text, drafts leave no trace, bad sources are named."""

import json
import random
import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from ft.fast import demo
from ft.fast.text.grammar import GrammarCompiler, GrammarError, GrammarKind, GrammarSpec, Matcher
from ft.fast.text.tokenizer import Tokenizer

VOCABULARY = 4101
"""More than the tokenizer has, and no multiple of a word."""

TOKENIZER = Tokenizer.load(demo.FOLDER)
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
    """Allowed ids; no bit beyond the vocabulary may be set."""
    bits = (mask[:, None] >> torch.arange(32)) & 1
    found: list[int] = torch.nonzero(bits.flatten())[:, 0].tolist()
    assert all(token < VOCABULARY for token in found)
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

    def row(self, drafts: Sequence[int]) -> Tensor:
        mask = super().row(drafts)
        self.accept(drafts[:1])
        return mask


def check_drafts_leave_no_trace(matcher: Matcher, text: Sequence[int], spec: GrammarSpec) -> None:
    """At every place of a valid text: rows after legal and illegal drafts are those of a fresh matcher that took the
    legal ones, and asking changes nothing."""
    for place in range(len(text)):
        before = matcher.row(())
        for illegal in (None, *range(3)):
            drafts = list(text[place : place + 3])
            if illegal is not None and illegal < len(drafts):
                drafts[illegal] = VOCABULARY - 1
            for width in range(1, len(drafts) + 1):
                fresh = COMPILER.matcher(spec)
                legal = fresh.accept([*text[:place], *drafts[:width]])
                row = matcher.row(drafts[:width])
                assert torch.equal(matcher.row(()), before), "asking moved the state"
                assert torch.equal(row, fresh.row(()) if legal else everything())
        assert matcher.accept([text[place]])
    after = matcher.row([STOPS[0], text[0]])
    assert torch.equal(after, everything()), "a row after a stop id decides nothing"


def everything() -> Tensor:
    mask = torch.full((-(-VOCABULARY // 32),), -1, dtype=torch.int32)
    mask[-1] = (1 << VOCABULARY % 32) - 1
    return mask


@pytest.mark.parametrize("name", SPECS)
def test_drafts_leave_no_trace(name: str) -> None:
    spec, _ = SPECS[name]
    text = walk(COMPILER.matcher(spec), 1)
    check_drafts_leave_no_trace(COMPILER.matcher(spec), text, spec)


def test_a_matcher_that_keeps_drafts_is_caught() -> None:
    spec, _ = SPECS["regex"]
    text = walk(COMPILER.matcher(spec), 1)
    right = COMPILER.matcher(spec)
    with pytest.raises(AssertionError):
        check_drafts_leave_no_trace(Forgetful(right._inner, VOCABULARY, STOPS), text, spec)


def test_a_finished_grammar_allows_stop_ids_only() -> None:
    matcher = COMPILER.matcher(GrammarSpec(GrammarKind.REGEX, "ab"))
    assert matcher.accept(TOKENIZER.encode("ab"))
    assert sorted(ids(matcher.row(()))) == sorted(STOPS)
    assert matcher.row(TOKENIZER.encode("b")).equal(everything())
    assert not matcher.accept(TOKENIZER.encode("b")) and matcher.finished


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
        (GrammarKind.JSON_SCHEMA, "[" * 9000, "json_schema"),
        (GrammarKind.REGEX, "a" * 70_000, "70000"),
    ],
)
def test_a_bad_source_is_named(kind: GrammarKind, source: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        COMPILER.check(GrammarSpec(kind, source))


def test_a_grammar_beyond_its_limits_allows_nothing_and_raises_nothing() -> None:
    matcher = COMPILER.matcher(GrammarSpec(GrammarKind.REGEX, "(a{1,1000}){1,1000}(b{1,999}){1,999}"))
    for _ in range(30):
        may = ids(matcher.row(()))
        if not may or not matcher.accept([may[-1]]):
            break


def test_structured_output_needs_a_stop_id() -> None:
    with pytest.raises(GrammarError, match="stop id"):
        GrammarCompiler(demo.FOLDER / "tokenizer.json", VOCABULARY, ())
