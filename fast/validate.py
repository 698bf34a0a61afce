"""What callers may ask for, checked the same way for Python and HTTP. Errors name parameter, value and range."""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

from ft.reference.types import Sampling

DEFAULT_MAX_TOKENS = 128
MAX_STOP_STRINGS = 16
MAX_TEMPERATURE = 2.0


class ParameterError(ValueError):
    """One parameter is out of its range."""

    def __init__(self, parameter: str, found: str, allowed: str, code: str | None = None) -> None:
        super().__init__(f"{parameter} {found}; {allowed}")
        self.parameter = parameter
        self.code = code


@dataclass(frozen=True)
class Options:
    """The wishes of one request, not checked yet.

    top_k 0 or -1, top_p 1 and min_p 0 are off. max_tokens None: up to the context. speculative False: no
    drafts for this request. ignore_eos: stop ids do not end it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    speculative: bool = True


def sampling(options: Options, vocabulary: int) -> Sampling:
    """The sampling parameters of a request. ParameterError for one that is out of range."""
    top_p = _number("top_p", options.top_p)
    if not 0 < top_p <= 1:
        raise _outside("top_p", top_p, "above 0 and at most 1")
    return Sampling(
        temperature=_between("temperature", options.temperature, MAX_TEMPERATURE),
        top_k=_top_k(options.top_k, vocabulary),
        top_p=top_p,
        min_p=_between("min_p", options.min_p, 1.0),
        seed=_seed(options.seed),
    )


def prompt(ids: Sequence[int], context: int, vocabulary: int) -> tuple[int, ...]:
    """The prompt's ids. ParameterError when it is empty, leaves no room for a token, or has an unknown id."""
    if not ids:
        raise ParameterError("prompt", "is empty", "it needs at least one token")
    if len(ids) >= context:
        allowed = f"it must have fewer than the context of {context} tokens"
        raise ParameterError("prompt", f"has {len(ids)} tokens", allowed, "context_length_exceeded")
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocabulary:
            found = f"has the token id {reprlib.repr(token)} at index {index}"
            raise ParameterError("prompt", found, f"ids must be integers from 0 to {vocabulary - 1}")
    return tuple(ids)


def max_tokens(value: int | None, context: int, name: str = "max_tokens") -> int:
    """Tokens to generate at most, not more than a context holds. ParameterError below 1."""
    if value is None:
        return context
    if _integer(name, value) < 1:
        raise _outside(name, value, "at least 1")
    return min(value, context)


def stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings. ParameterError when there are too many, or one is empty or no string."""
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise ParameterError("stop", f"has {len(strings)} strings", f"at most {MAX_STOP_STRINGS} are allowed")
    for text in strings:
        if not isinstance(text, str) or not text:
            raise ParameterError(
                "stop", f"has {reprlib.repr(text)}", "each must be a string of one character or more"
            )
    return strings


def _outside(parameter: str, value: object, allowed: str) -> ParameterError:
    return ParameterError(parameter, f"is {reprlib.repr(value)}", f"it must be {allowed}")


def _number(parameter: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise _outside(parameter, value, "a finite number")


def _integer(parameter: str, value: object) -> int:
    if type(value) is int:
        return value
    raise _outside(parameter, value, "an integer")


def _between(parameter: str, value: object, high: float) -> float:
    number = _number(parameter, value)
    if not 0 <= number <= high:
        raise _outside(parameter, value, f"from 0 to {high:g}")
    return number


def _top_k(value: object, vocabulary: int) -> int:
    top_k = _integer("top_k", value)
    if top_k < -1:
        raise _outside("top_k", value, "at least 1, or 0 or -1 for off")
    return min(max(top_k, 0), vocabulary)


def _seed(value: object) -> int | None:
    if value is None:
        return None
    seed = _integer("seed", value)
    if not -(2**63) <= seed < 2**63:
        raise _outside("seed", value, "from -2**63 to 2**63 - 1")
    return seed
