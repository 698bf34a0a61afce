"""Structured output: JSON, JSON schemas and regular expressions as masks over token ids (verify_sampling 9).

llguidance keeps the state of the grammar. Drafts are tried on it and taken back; emitted tokens advance it.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

MAX_SOURCE = 64 * 1024
"""Characters of a schema or a pattern."""

MAX_MULTIPLE = 10_000
"""Largest multipleOf: a grammar of digits has a state for each remainder, and is built before it can be bounded."""

KEPT_GRAMMARS = 64
"""Checked grammars that are remembered."""

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
        return cls(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


class GrammarCompiler:
    """Makes matchers for one tokenizer and one set of stop ids. Safe to call from several threads."""

    def __init__(self, tokenizer_file: Path, vocabulary: int, stop_ids: Sequence[int]) -> None:
        """GrammarError when there is no stop id, so that nothing could end a grammar."""
        if not stop_ids:
            raise GrammarError("structured output needs a stop id, and the checkpoint names none")
        self.vocabulary = vocabulary
        self.stop_ids = tuple(stop_ids)
        text = tokenizer_file.read_text(encoding="utf-8")
        self._tokenizer = LLTokenizer(text, n_vocab=vocabulary, eos_token=list(stop_ids))
        self._checked: OrderedDict[GrammarSpec, str] = OrderedDict()
        self._lock = Lock()

    def check(self, spec: GrammarSpec) -> str:
        """The grammar in the library's own form. GrammarError says what is wrong with the source."""
        with self._lock:
            if spec in self._checked:
                self._checked.move_to_end(spec)
                return self._checked[spec]
        grammar = _grammar(spec)
        message = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS).get_error()
        if message:
            raise GrammarError(f"{spec.kind} cannot be used: {message.splitlines()[0]}")
        with self._lock:
            self._checked[spec] = grammar
            while len(self._checked) > KEPT_GRAMMARS:
                self._checked.popitem(last=False)
        return grammar

    def matcher(self, spec: GrammarSpec) -> "Matcher":
        """A matcher that has seen nothing. GrammarError as in `check`."""
        inner = LLMatcher(self._tokenizer, self.check(spec), log_level=0, limits=LIMITS)
        return Matcher(inner, self.vocabulary, self.stop_ids)


LIMITS = LLParserLimits(max_grammar_size=200_000)


class Matcher:
    """The state of one request's grammar. Implements fast.request.Grammar."""

    def __init__(self, inner: LLMatcher, vocabulary: int, stop_ids: tuple[int, ...]) -> None:
        self.vocabulary = vocabulary
        self.finished = False
        self._inner = inner
        self._stop_ids = stop_ids

    def row(self, drafts: Sequence[int]) -> Tensor:
        """int32 [ceil(V / 32)], bit v % 32 of word v // 32 allows id v after the output and `drafts`.

        Where a draft was not allowed, or was a stop id, the row decides nothing and allows all. The state stays.
        """
        if any(token in self._stop_ids for token in drafts):
            return self._all()
        if self.finished or self._inner.is_stopped():
            return self._all() if drafts else self._stops()
        taken = self._inner.try_consume_tokens(list(drafts))
        try:
            return self._mask() if taken == len(drafts) else self._all()
        finally:
            if taken and not self._inner.rollback(taken):
                raise RuntimeError(
                    f"the grammar could not take back {taken} drafts: {self._inner.get_error()}"
                )

    def accept(self, tokens: Sequence[int]) -> bool:
        """Take emitted tokens in; a stop id ends the grammar. False when one was not allowed, which ends it too."""
        for token in tokens:
            over = self.finished or self._inner.is_stopped()
            if token in self._stop_ids:
                allowed = over or self._inner.is_accepting()
                self.finished = True
            else:
                allowed = not over and bool(self._inner.consume_token(token))
            if not allowed:
                self.finished = True
                return False
        return True

    def _mask(self) -> Tensor:
        if self._inner.is_stopped():
            return self._stops()
        words = -(-self.vocabulary // WORD_BITS)
        try:
            bits = self._inner.compute_bitmask()
        except ValueError:
            # Out of its limits: no token is allowed, and the request fails by name.
            return torch.zeros(words, dtype=torch.int32)
        mask = torch.frombuffer(bytearray(bits), dtype=torch.int32)[:words]
        if self._inner.is_accepting():
            mask = mask | self._stops()
        return mask & self._all()

    def _stops(self) -> Tensor:
        return _bits(self._stop_ids, self.vocabulary)

    def _all(self) -> Tensor:
        mask = torch.full((-(-self.vocabulary // WORD_BITS),), -1, dtype=torch.int32)
        spare = self.vocabulary % WORD_BITS
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
                _check_multiples(json.loads(spec.source))
                return _json(spec.source)
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(spec.source)
    except GrammarError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise GrammarError(f"{spec.kind} cannot be used: {error}") from error


def _check_multiples(part: Any) -> None:
    """GrammarError for a multipleOf that is too large, anywhere in a schema."""
    if isinstance(part, dict):
        multiple = part.get("multipleOf")
        if isinstance(multiple, int | float) and multiple > MAX_MULTIPLE:
            raise GrammarError(f"json_schema has multipleOf {multiple}; at most {MAX_MULTIPLE} is supported")
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _check_multiples(inner)


def _json(schema: str) -> str:
    """Fixed separators: a model that may emit blanks may emit them for ever."""
    return LLMatcher.grammar_from_json_schema(
        schema, overrides={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    )
