"""Logit edits from what callers write: bad words in both spellings, budgets only where a thought is open."""

from typing import Any

import pytest

from ft.fast import validate_edits
from ft.fast.text.tokenizer import Tokenizer
from ft.fast.validate import Options, ParameterError
from ft.reference.types import Edits, ThinkingBudget

from .stored import FOLDER

TOKENIZER = Tokenizer.load(FOLDER)
VOCABULARY = TOKENIZER.vocabulary
BEGIN, END = (TOKENIZER.id_of(mark) for mark in validate_edits.THINKING)


def edits(prompt: tuple[int, ...] = (1,), **options: Any) -> Edits:
    return validate_edits.edits(Options(**options), TOKENIZER, prompt, VOCABULARY)


def test_nothing_asked_for_is_nothing_done() -> None:
    assert edits() == Edits()


def test_a_bad_word_is_banned_with_and_without_a_space() -> None:
    found = edits(bad_words=["ab", "ab"]).bad_words
    assert found == (tuple(TOKENIZER.encode("ab", False)), tuple(TOKENIZER.encode(" ab", False)))


def test_a_budget_counts_only_where_a_thought_is_open() -> None:
    assert BEGIN is not None and END is not None
    budget = ThinkingBudget(7, (END,))
    for prompt, expected in (
        ((1, BEGIN, 2), budget),
        ((1, BEGIN, 2, END), None),
        ((BEGIN, END, BEGIN), budget),
        ((1, 2), None),
        ((END,), None),
    ):
        assert edits(prompt, thinking_token_budget=7).thinking == expected


def test_ids_and_biases_arrive_as_they_are() -> None:
    found = edits(logit_bias={3: 2, 5: -1.5}, allowed_token_ids=[4, 4, 2])
    assert found.logit_bias == ((3, 2.0), (5, -1.5)) and found.allowed_ids == (4, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logit_bias": {VOCABULARY: 1.0}}, "logit_bias has the token id"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias is nan"),
        ({"logit_bias": dict.fromkeys(range(1025), 0.0)}, "logit_bias has 1025 ids"),
        ({"logit_bias": {1: 10**400}}, "logit_bias is 1000"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"min_tokens": 200, "max_tokens": 100}, "min_tokens is 200"),
        ({"bad_words": [3]}, "bad_words has 3"),
    ],
)
def test_what_is_out_of_range_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        edits(**options)
