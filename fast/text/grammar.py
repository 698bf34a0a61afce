"""Structured output: JSON, JSON schemas and regular expressions as masks over token ids (verify_sampling 9).

llguidance keeps the state of the grammar. Drafts are tried on it and taken back; emitted tokens advance it.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import takewhile
from math import lcm
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

MAX_SOURCE = 64 * 1024
"""Characters of a schema or a pattern."""

MAX_MULTIPLE = 10_000
"""Largest multipleOf, in units of its last digit, and largest common multiple of those that a schema may join: a
grammar of digits has a state for each remainder, and is built before it can be bounded."""

JOINING = {"allOf", "anyOf", "oneOf", "$ref"}
"""Keywords by which two multipleOf can hold for one number."""

KEPT_GRAMMARS = 64
"""Checked grammars that are remembered."""

MAX_RESTARTS = 16
"""How often drafts may drive a request's grammar out of the library's limits before the request fails."""

MAX_REASON = 300
"""Characters of the library's words in an error."""

WORD_BITS = 32


class GrammarError(ValueError):
    """A schema or a pattern that cannot be used; the message says why."""


class GrammarKind(StrEnum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"


@dataclass(frozen=True)
class GrammarSpec:
    """source: the JSON text of a schema, or a pattern; empty for any JSON object."""

    kind: GrammarKind
    source: str = ""

    @classmethod
    def schema(cls, schema: dict[str, Any]) -> "GrammarSpec":
        """The order of keys is kept: properties are emitted in it."""
        return cls(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


class GrammarCompiler:
    """Makes matchers for one tokenizer and one set of stop ids. Safe to call from several threads.

    What is kept of a grammar is its text: copies of a compiled one share the lexer, limits included, so that one
    request could use up those of another.
    """

    def __init__(self, tokenizer_file: Path, vocabulary: int, stop_ids: Sequence[int]) -> None:
        """GrammarError when nothing could end a grammar, or the library cannot use the tokenizer."""
        if not stop_ids:
            raise GrammarError("structured output needs a stop id, and the checkpoint names none")
        self.vocabulary = vocabulary
        self.stop_ids = tuple(stop_ids)
        try:
            text = tokenizer_file.read_text(encoding="utf-8")
            self._tokenizer = LLTokenizer(text, n_vocab=vocabulary, eos_token=list(stop_ids))
        except (OSError, ValueError, OverflowError) as error:
            raise GrammarError(f"{tokenizer_file} cannot be used for structured output: {error}") from error
        self._checked: OrderedDict[GrammarSpec, str] = OrderedDict()
        self._lock = Lock()

    def check(self, spec: GrammarSpec) -> str:
        """The grammar in the library's own form. GrammarError says what is wrong with the source."""
        with self._lock:
            if spec in self._checked:
                self._checked.move_to_end(spec)
                return self._checked[spec]
        grammar = _grammar(spec)
        message = self._try(grammar)
        if message:
            raise GrammarError(f"{spec.kind} cannot be used: {_reason(message)}")
        with self._lock:
            self._checked[spec] = grammar
            while len(self._checked) > KEPT_GRAMMARS:
                self._checked.popitem(last=False)
        return grammar

    def matcher(self, spec: GrammarSpec) -> "Matcher":
        """A matcher that has seen nothing. GrammarError as in `check`."""
        grammar = self.check(spec)
        return Matcher(lambda: self._start(grammar), self.vocabulary, self.stop_ids)

    def _start(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)

    def _try(self, grammar: str) -> str:
        """Why a grammar cannot make its first token, empty when it can."""
        inner = self._start(grammar)
        if inner.is_stopped():
            return inner.get_error()
        may = torch.zeros(-(-self.vocabulary // WORD_BITS), dtype=torch.int32)
        try:
            inner.unsafe_compute_mask_ptr(may.data_ptr(), may.nbytes)
        except ValueError as error:
            return str(error)
        if not inner.is_error() and not inner.is_accepting():
            word = int(may.nonzero()[0]) if may.any() else 0
            bit = int(may[word]) & -int(may[word])
            if not bit or inner.try_consume_tokens([word * WORD_BITS + bit.bit_length() - 1]) != 1:
                return inner.get_error() or "no text matches it"
        message = inner.get_error()
        return "no text matches it" if message.startswith("NoExtension") else message


LIMITS = LLParserLimits(max_grammar_size=200_000)


class Matcher:
    """The state of one request's grammar. Implements fast.request.Grammar.

    Only emitted tokens advance it: drafts are tried and taken back, and none is tried past the end of the grammar.
    """

    def __init__(self, start: Callable[[], LLMatcher], vocabulary: int, stop_ids: tuple[int, ...]) -> None:
        """start: makes the library's matcher that has seen nothing."""
        self.vocabulary = vocabulary
        self._start = start
        self._inner = start()
        self._emitted: list[int] = []
        self._restarts = 0
        self._ended = self._lost = False
        self._stop_ids = stop_ids
        self._stops = _bits(stop_ids, vocabulary)
        self._all = _bits_below(vocabulary)

    @property
    def finished(self) -> bool:
        """Whether only stop ids may follow."""
        return self._ended or self._complete()

    def row(self, drafts: Sequence[int]) -> Tensor:
        """int32 [ceil(V / 32)], bit v % 32 of word v // 32 allows id v after the output and `drafts`.

        Where a draft was not allowed, or was a stop id, the row decides nothing and allows all. The state stays.
        No bit is set when the grammar has left the library's limits.
        """
        taken = 0
        try:
            for token in self._offered(drafts):
                if not self._take(token):
                    break
                taken += 1
            return self._mask() if taken == len(drafts) else self._all.clone()
        finally:
            self._take_back(taken)

    def rows(self, drafts: Sequence[int]) -> Tensor:
        """int32 [len(drafts) + 1, ceil(V / 32)]: `row` after each prefix of `drafts`, the empty one first."""
        rows = self._all.repeat(len(drafts) + 1, 1)
        taken = 0
        try:
            rows[0] = self._mask()
            for token in self._offered(drafts):
                if not self._take(token):
                    break
                taken += 1
                rows[taken] = self._mask()
            return rows
        finally:
            self._take_back(taken)

    def accept(self, tokens: Sequence[int]) -> bool:
        """Take emitted tokens in; a stop id ends the grammar. False when one was not allowed, which ends it too."""
        for token in tokens:
            if not self._accept(token):
                self._ended = True
                return False
        return True

    def _accept(self, token: int) -> bool:
        if token in self._stop_ids:
            allowed = self._ended or (not self._lost and self._may_stop())
            self._ended = True
            return allowed
        if token not in self._offered([token]) or not self._take(token):
            return False
        self._emitted.append(token)
        return True

    def _offered(self, drafts: Sequence[int]) -> Iterator[int]:
        """The drafts that the library may be asked about."""
        if self._ended or self._lost:
            return iter(())
        return takewhile(
            lambda token: token not in self._stop_ids and 0 <= token < self.vocabulary,
            drafts,
        )

    def _take(self, token: int) -> bool:
        return not self._inner.is_stopped() and self._inner.try_consume_tokens([token]) == 1

    def _take_back(self, taken: int) -> None:
        """Undo drafts. The library keeps no state to return to when one has driven it out of its limits."""
        if not self._inner.is_error() and (not taken or self._inner.rollback(taken)):
            return
        self._restarts += 1
        self._lost = self._lost or self._restarts > MAX_RESTARTS
        if not self._lost:
            self._inner = self._start()
            self._lost = self._inner.try_consume_tokens(self._emitted) != len(self._emitted)

    def _complete(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        return self._inner.is_stopped() and not self._inner.is_error()

    def _may_stop(self) -> bool:
        return self._complete() or (not self._inner.is_error() and self._inner.is_accepting())

    def _mask(self) -> Tensor:
        if self._ended or (not self._lost and self._complete()):
            return self._stops.clone()
        mask = torch.zeros_like(self._all)
        if self._lost or self._inner.is_error():
            return mask
        try:
            self._inner.unsafe_compute_mask_ptr(mask.data_ptr(), mask.nbytes)
        except ValueError:
            return mask.zero_()
        mask &= self._all & ~self._stops
        return mask | self._stops if self._may_stop() else mask


def _bits_below(vocabulary: int) -> Tensor:
    mask = torch.full((-(-vocabulary // WORD_BITS),), -1, dtype=torch.int32)
    spare = vocabulary % WORD_BITS
    if spare:
        mask[-1] = (1 << spare) - 1
    return mask


def _bits(ids: Sequence[int], vocabulary: int) -> Tensor:
    words = torch.zeros(-(-vocabulary // WORD_BITS), dtype=torch.int64)
    for token in set(ids):
        words[token // WORD_BITS] |= 1 << (token % WORD_BITS)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _grammar(spec: GrammarSpec) -> str:
    if len(spec.source) > MAX_SOURCE:
        raise GrammarError(
            f"{spec.kind} has {len(spec.source)} characters; at most {MAX_SOURCE} are taken: ask for less at once"
        )
    if spec.kind != GrammarKind.JSON_OBJECT and not spec.source:
        raise GrammarError(f"{spec.kind} is empty; nothing could be generated")
    try:
        match spec.kind:
            case GrammarKind.JSON_OBJECT:
                return _json('{"type": "object"}')
            case GrammarKind.JSON_SCHEMA:
                grammar = _json(spec.source)
                _check_multiples(json.loads(spec.source))
                return grammar
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(spec.source)
    except GrammarError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(f"{spec.kind} cannot be used: {_reason(str(error))}") from error


def _check_multiples(schema: Any) -> None:
    """GrammarError for multipleOf that are too large, anywhere in a schema."""
    multiples: list[Decimal] = []
    joins = False
    for part in _objects(schema):
        joins = joins or not JOINING.isdisjoint(part)
        multiple = part.get("multipleOf")
        if isinstance(multiple, int | float) and multiple:
            multiples.append(abs(Decimal(repr(multiple)).normalize()))
            _check_units(multiples[-1:])
    if joins:
        _check_units(multiples)


def _check_units(multiples: Sequence[Decimal]) -> None:
    """GrammarError when the common multiple is too large, counted in units of the finest last digit."""
    if not multiples:
        return
    digits = max(0, *(-int(multiple.as_tuple().exponent) for multiple in multiples))
    if digits + max(multiple.adjusted() for multiple in multiples) > 30:
        common = MAX_MULTIPLE + 1
    else:
        common = lcm(*(int(multiple.scaleb(digits)) for multiple in multiples))
    if common > MAX_MULTIPLE:
        found = " and ".join(map(str, dict.fromkeys(f"{multiple:f}" for multiple in multiples)))
        raise GrammarError(
            f"json_schema has multipleOf {_short(found)}; at most {MAX_MULTIPLE} units of the last digit are "
            "supported, alone and as the common multiple of those that allOf, anyOf, oneOf or $ref may join"
        )


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _objects(inner)


def _reason(message: str) -> str:
    """One line of a message of the library, which may span several and quote the source in full."""
    lines = message.split("\n<state>")[0].splitlines()
    error = next((line for line in lines if line.startswith("error: ")), None)
    return _short(lines[0] if error is None else f"invalid regex: {error.removeprefix('error: ')}")


def _short(text: str) -> str:
    half = MAX_REASON // 2
    return text if len(text) <= MAX_REASON else f"{text[:half]} ... {text[-half:]}"


def _json(schema: str) -> str:
    """Fixed separators: a model that may emit blanks may emit them for ever."""
    return LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            "whitespace_flexible": False,
            "whitespace_pattern": None,
            "item_separator": ", ",
            "key_separator": ": ",
        },
    )
