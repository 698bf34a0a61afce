"""What callers may ask for, checked the same way for Python and HTTP. Errors name parameter, value and range."""

import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ft.fast.text.grammar import GrammarSpec
from ft.reference.types import Edits, Sampling, Verification

DEFAULT_MAX_TOKENS = 128
MAX_STOP_STRINGS = 16
MAX_TEMPERATURE = 2.0
MAX_LOGPROBS = 20
LARGEST = sys.float_info.max
LOGPROBS_MODES = ("raw", "processed")
VERIFICATIONS = {
    "rejection": Verification.REJECTION,
    "coupled": Verification.COUPLED,
    "block": Verification.BLOCK,
}


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
    drafts for this request. ignore_eos: stop ids do not end it; stop_token_ids are further ones. logprobs: likeliest
    tokens to report beside each emitted one, None for no report; logprobs_mode: raw, the model's own, or processed, of
    the law that was sampled from. verification: rejection, coupled or block; None leaves it to temperature and seed.
    grammar: what the text must match. The rest are edits of the logits, see `validate_edits`.
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
    stop_token_ids: Sequence[int] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    min_tokens: int = 0
    bad_words: Sequence[str] = ()
    thinking_token_budget: int | None = None
    verification: str | None = None
    logprobs: int | None = None
    logprobs_mode: str = "raw"
    grammar: GrammarSpec | None = None


def sampling(options: Options, vocabulary: int, edits: Edits) -> Sampling:
    """The sampling parameters of a request. ParameterError for one that is out of range."""
    top_p = number("top_p", options.top_p)
    if not 0 < top_p <= 1:
        raise outside("top_p", top_p, "above 0 and at most 1")
    return Sampling(
        temperature=_between("temperature", options.temperature, MAX_TEMPERATURE),
        top_k=_top_k(options.top_k, vocabulary),
        top_p=top_p,
        min_p=_between("min_p", options.min_p, 1.0),
        seed=_seed(options.seed),
        verification=_verification(options.verification),
        edits=edits,
    )


def logprobs(options: Options, vocabulary: int) -> tuple[int | None, bool]:
    """How many likeliest tokens to report, None for no report, and whether those of the final law."""
    if options.logprobs_mode not in LOGPROBS_MODES:
        raise outside("logprobs_mode", options.logprobs_mode, f"one of {', '.join(LOGPROBS_MODES)}")
    processed = options.logprobs_mode == "processed"
    if options.logprobs is None:
        return None, processed
    count = integer("logprobs", options.logprobs)
    if not 0 <= count <= MAX_LOGPROBS:
        raise outside("logprobs", count, f"from 0 to {MAX_LOGPROBS}")
    return min(count, vocabulary), processed


def compatible(options: Options, thinking: bool) -> None:
    """ParameterError names what cannot be combined with a grammar. thinking: the prompt leaves a thought open."""
    if options.grammar is None:
        return
    beside = {
        "ignore_eos": options.ignore_eos,
        "min_tokens": bool(options.min_tokens),
        "allowed_token_ids": options.allowed_token_ids is not None,
        "thinking_token_budget": options.thinking_token_budget is not None,
        "a prompt that leaves thinking open": thinking,
    }
    taken = [name for name, given in beside.items() if given]
    if taken:
        found = f"is given together with {taken[0]}"
        raise ParameterError("response_format", found, "they are not supported together; leave one out")


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
    if integer(name, value) < 1:
        raise outside(name, value, "at least 1")
    return min(value, context)


def next_seed(seed: int, choice: int) -> int:
    """The seed of a further choice, within 64 bits; the first choice takes the seed as it is."""
    return (seed + choice + 2**63) % 2**64 - 2**63 if choice else seed


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


def outside(parameter: str, value: object, allowed: str) -> ParameterError:
    return ParameterError(parameter, f"is {reprlib.repr(value)}", f"it must be {allowed}")


def number(parameter: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST:
        return float(value)
    raise outside(parameter, value, "a finite number")


def integer(parameter: str, value: object) -> int:
    if type(value) is int:
        return value
    raise outside(parameter, value, "an integer")


def _between(parameter: str, value: object, high: float) -> float:
    found = number(parameter, value)
    if not 0 <= found <= high:
        raise outside(parameter, value, f"from 0 to {high:g}")
    return found


def _top_k(value: object, vocabulary: int) -> int:
    top_k = integer("top_k", value)
    if top_k < -1:
        raise outside("top_k", value, "at least 1, or 0 or -1 for off")
    return min(max(top_k, 0), vocabulary)


def _verification(value: str | None) -> Verification | None:
    if value is None:
        return None
    if value not in VERIFICATIONS:
        raise outside("verification", value, f"one of {', '.join(VERIFICATIONS)}")
    return VERIFICATIONS[value]


def _seed(value: object) -> int | None:
    if value is None:
        return None
    seed = integer("seed", value)
    if not -(2**63) <= seed < 2**63:
        raise outside("seed", value, "from -2**63 to 2**63 - 1")
    return seed
