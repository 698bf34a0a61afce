"""Logit edits as callers may ask for them, checked the same way for Python and HTTP."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence

from ft.fast.edit_table import MAX_IDS, MAX_WORD_TOKENS, MAX_WORDS
from ft.fast.text.tokenizer import Tokenizer
from ft.fast.validate import Options, ParameterError, integer, number, outside
from ft.reference.types import Edits, ThinkingBudget

MAX_BIAS = 100.0
REPETITION = (0.01, 10.0)
MOST_TOKENS = 2**31 - 1
"""Larger counts of tokens are brought down to it: no context is longer, and the engine's tables hold it."""

THINKING = ("<think>", "</think>")


def edits(options: Options, tokenizer: Tokenizer, prompt: Sequence[int], vocabulary: int) -> Edits:
    """The edits of a request whose prompt is checked. ParameterError for one that is out of range."""
    return Edits(
        logit_bias=_logit_bias(options.logit_bias, vocabulary),
        allowed_ids=_allowed(options.allowed_token_ids, vocabulary),
        min_tokens=_min_tokens(options),
        repetition_penalty=_repetition(options.repetition_penalty),
        frequency_penalty=_penalty("frequency_penalty", options.frequency_penalty),
        presence_penalty=_penalty("presence_penalty", options.presence_penalty),
        bad_words=_bad_words(options.bad_words, tokenizer),
        thinking=_thinking(options.thinking_token_budget, tokenizer, prompt),
    )


def token_ids(name: str, ids: Iterable[object], vocabulary: int) -> tuple[int, ...]:
    """The ids, each once. ParameterError names one that is not an id."""
    found = []
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise ParameterError(
                name, f"has the token id {reprlib.repr(token)}", f"ids are 0 to {vocabulary - 1}"
            )
        found.append(token)
    return tuple(dict.fromkeys(found))


def thinks(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Whether a prompt leaves a thought open: the last of its marks begins one."""
    begin, end = (tokenizer.id_of(mark) for mark in THINKING)
    marks = [token for token in prompt if token in (begin, end)]
    return begin is not None and bool(marks) and marks[-1] == begin


def _logit_bias(bias: Mapping[int, float], vocabulary: int) -> tuple[tuple[int, float], ...]:
    if len(bias) > MAX_IDS:
        raise ParameterError("logit_bias", f"has {len(bias)} ids", f"at most {MAX_IDS} are allowed")
    ids = token_ids("logit_bias", bias, vocabulary)
    return tuple((token, _within("logit_bias", bias[token], MAX_BIAS)) for token in ids)


def _allowed(ids: Sequence[int] | None, vocabulary: int) -> tuple[int, ...] | None:
    if ids is None:
        return None
    found = token_ids("allowed_token_ids", ids, vocabulary)
    if not 1 <= len(found) <= MAX_IDS:
        raise ParameterError("allowed_token_ids", f"has {len(found)} ids", f"1 to {MAX_IDS} are allowed")
    return found


def _min_tokens(options: Options) -> int:
    least = integer("min_tokens", options.min_tokens)
    if least < 0:
        raise outside("min_tokens", least, "at least 0")
    if options.max_tokens is not None and least > options.max_tokens:
        raise outside("min_tokens", least, f"at most max_tokens, which is {options.max_tokens}")
    return min(least, MOST_TOKENS)


def _repetition(value: float) -> float:
    penalty = number("repetition_penalty", value)
    least, most = REPETITION
    if not least <= penalty <= most:
        raise outside("repetition_penalty", value, f"from {least:g} to {most:g}")
    return penalty


def _penalty(name: str, value: float) -> float:
    return _within(name, value, 2.0)


def _within(name: str, value: object, limit: float) -> float:
    found = number(name, value)
    if abs(found) > limit:
        raise outside(name, value, f"from -{limit:g} to {limit:g}")
    return found


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is and after a space, as it would stand at the start of a text and within it."""
    if isinstance(words, str):
        raise outside("bad_words", words, "a list of strings")
    for word in words:
        if not isinstance(word, str) or not word:
            allowed = "each must be a string of one character or more"
            raise ParameterError("bad_words", f"has {reprlib.repr(word)}", allowed)
    spellings = [text for word in dict.fromkeys(words) for text in (word, f" {word}")]
    found = tuple(dict.fromkeys(_word_ids(text, tokenizer) for text in spellings))
    if len(found) > MAX_WORDS:
        limit = f"at most {MAX_WORDS} are allowed, two for most words"
        raise ParameterError("bad_words", f"has {len(found)} token sequences", limit)
    return found


def _word_ids(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    shown = reprlib.repr(text)
    try:
        ids = tuple(tokenizer.encode(text, plain=False))
    except ValueError as error:
        raise ParameterError("bad_words", f"has {shown}, which cannot be encoded", str(error)) from error
    if not 1 <= len(ids) <= MAX_WORD_TOKENS:
        limit = f"at least 1 and at most {MAX_WORD_TOKENS} are allowed"
        raise ParameterError("bad_words", f"has {shown}, {len(ids)} tokens", limit)
    return ids


def _thinking(budget: int | None, tokenizer: Tokenizer, prompt: Sequence[int]) -> ThinkingBudget | None:
    if budget is None:
        return None
    if integer("thinking_token_budget", budget) < 0:
        raise outside("thinking_token_budget", budget, "at least 0")
    end = tokenizer.id_of(THINKING[1])
    if end is None:
        found = f"is {budget}"
        raise ParameterError("thinking_token_budget", found, f"the model has no {THINKING[1]} token to force")
    return ThinkingBudget(min(budget, MOST_TOKENS), (end,)) if thinks(tokenizer, prompt) else None
