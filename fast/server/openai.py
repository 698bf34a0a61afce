"""What clients send: the parameters of both endpoints, strictly typed, and the rest sorted into harmless and not.

A parameter that is not supported is refused unless its value asks for nothing. null counts as not given.
"""

import re
import reprlib
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ft.fast import validate
from ft.fast.generation import Generation
from ft.fast.llm import LLM, Prompt
from ft.fast.server.errors import ApiError
from ft.fast.text.grammar import GrammarKind, GrammarSpec
from ft.fast.validate import Options, ParameterError

IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
    }
)
"""Parameters that cannot change the output."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Parameters that are not supported, with the values that ask for nothing."""

LAW = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Parameters that the checkpoint may have defaults for."""

MAX_CHOICES = 16
"""Choices of one prompt."""

MAX_REQUEST_CHOICES = 128
"""Choices of one request, all prompts together."""

MAX_COMPLETION_LOGPROBS = 5
"""OpenAI's limit for /v1/completions."""

COMPLETION_MAX_TOKENS = 16
"""What /v1/completions generates when max_tokens is not given."""


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = False


class Parameters(BaseModel):
    """Parameters of both endpoints; None where the checkpoint's default or the server's applies.

    Beyond OpenAI's: those from top_k on. speculative set to false turns drafts off.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    stop: str | list[str] = []
    n: int = 1
    best_of: int | None = None
    response_format: dict[str, Any] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    thinking_token_budget: int | None = None
    verification: str | None = None
    logprobs_mode: str = "raw"
    speculative: bool = True

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self, defaults: dict[str, float], max_tokens: int | None) -> Options:
        """The options of one request; defaults: sampling parameters of the checkpoint by name."""
        law: dict[str, Any] = {"temperature": 1.0, **defaults}
        for name in LAW:
            if getattr(self, name) is not None:
                law[name] = getattr(self, name)
        return Options(
            seed=self.seed,
            max_tokens=max_tokens,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            speculative=self.speculative,
            stop_token_ids=self.stop_token_ids,
            logit_bias=bias_of(self.logit_bias),
            allowed_token_ids=self.allowed_token_ids,
            min_tokens=self.min_tokens,
            bad_words=self.bad_words,
            thinking_token_budget=self.thinking_token_budget,
            verification=self.verification,
            logprobs=self.report,
            logprobs_mode=self.logprobs_mode,
            grammar=grammar_of(self.response_format),
            **law,
        )

    @property
    def report(self) -> int | None:
        """Likeliest tokens to report beside each emitted one; None for no report."""
        raise NotImplementedError

    def choices(self, options: Options) -> list[Options]:
        """The options of each of the n choices: with a seed, choice j takes seed + j."""
        if not 1 <= self.n <= MAX_CHOICES:
            raise validate.outside("n", self.n, f"from 1 to {MAX_CHOICES}")
        if self.best_of not in (None, self.n):
            raise ParameterError(
                "best_of",
                f"is {self.best_of}",
                f"it must be n, which is {self.n}: no choice is left out",
                "unsupported_parameter",
            )
        if options.seed is None:
            return [options] * self.n
        seeds = [validate.next_seed(options.seed, choice) for choice in range(self.n)]
        return [replace(options, seed=seed) for seed in seeds]


class CompletionParameters(Parameters):
    """Body of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None

    @property
    def report(self) -> int | None:
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_COMPLETION_LOGPROBS:
            raise validate.outside("logprobs", self.logprobs, f"from 0 to {MAX_COMPLETION_LOGPROBS}")
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """One entry a choice. ApiError when there is none."""
        match self.prompt:
            case str():
                return [self.prompt]
            case []:
                raise ApiError(400, "prompt is []; it needs at least one token", "prompt")
            case [int(), *_]:
                return [[token for token in self.prompt if isinstance(token, int)]]
            case _:
                return [prompt for prompt in self.prompt if not isinstance(prompt, int)]

    def prepare(self, llm: LLM, request_id: str) -> list[Generation]:
        """The generations of the request. ParameterError names what is out of range."""
        limit = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        options = self.options(dict(llm.tokenizer.settings.sampling), limit)
        prompts, choices = self.prompts(), self.choices(options)
        if len(prompts) * len(choices) > MAX_REQUEST_CHOICES:
            name, found = "prompt", f"has {len(prompts)} entries"
            if self.n > 1:
                name, found = "n", f"is {self.n} for {len(prompts)} prompts"
            raise ParameterError(name, found, f"at most {MAX_REQUEST_CHOICES} choices are allowed in all")
        wanted = [(prompt, choice) for prompt in prompts for choice in choices]
        return [
            llm.prepare(f"{request_id}-{index}", prompt, choice)
            for index, (prompt, choice) in enumerate(wanted)
        ]


class ChatParameters(Parameters):
    """Body of /v1/chat/completions. chat_template_kwargs: further variables of the chat template."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] = {}
    logprobs: bool = False
    top_logprobs: int | None = None

    @property
    def report(self) -> int | None:
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs is not None:
            raise ParameterError(
                "top_logprobs", f"is {self.top_logprobs}", "it needs logprobs set to true beside it"
            )
        return None

    def prepare(self, llm: LLM, request_id: str) -> list[Generation]:
        """The generations of the request, one a choice. ParameterError names what is out of range."""
        limit = self.max_tokens
        if self.max_completion_tokens is not None:
            limit = validate.max_tokens(self.max_completion_tokens, llm.context, "max_completion_tokens")
        options = self.options(dict(llm.tokenizer.settings.sampling), limit)
        template = llm.tokenizer.settings.chat
        if template is None:
            raise ApiError(400, "the model has no chat template; use /v1/completions", "messages")
        try:
            prompt = template.render(self.messages, self.chat_template_kwargs)
        except ValueError as error:
            raise ApiError(400, str(error), "messages") from error
        try:
            return [
                llm.prepare(f"{request_id}-{index}", prompt, choice, plain=False)
                for index, choice in enumerate(self.choices(options))
            ]
        except ParameterError as error:
            names = {"prompt": "messages", "logprobs": "top_logprobs"}
            parameter = names.get(error.parameter, error.parameter)
            raise ApiError(400, str(error), parameter, error.code) from error


DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")


def bias_of(given: dict[str, float]) -> dict[int, float]:
    """logit_bias by token id; JSON spells the ids as strings."""
    wrong = next((name for name in given if not DECIMAL.fullmatch(name)), None)
    if wrong is not None:
        raise ParameterError(
            "logit_bias", f"has the key {reprlib.repr(wrong)}", "keys are token ids in decimal"
        )
    return {int(name): addend for name, addend in given.items()}


def grammar_of(form: dict[str, Any] | None) -> GrammarSpec | None:
    """What response_format asks for; None for plain text."""
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return GrammarSpec(GrammarKind.JSON_OBJECT)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return GrammarSpec.schema(schema)
        case {"type": "regex", "regex": str(pattern)}:
            return GrammarSpec(GrammarKind.REGEX, pattern)
    allowed = (
        'it must be {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {...}}} '
        'or {"type": "regex", "regex": "..."}'
    )
    raise ParameterError("response_format", f"is {reprlib.repr(form)}", allowed)


Parsed = CompletionParameters | ChatParameters


def parse(kind: type[Parsed], body: dict[str, Any]) -> Parsed:
    """The typed parameters of a body. ApiError 400 names the first that is wrong or not supported."""
    given = {name: value for name, value in body.items() if value is not None and name not in IGNORED}
    for name in NEUTRAL.keys() & given.keys():
        if not any(_same(given[name], value) for value in NEUTRAL[name]):
            raise ApiError(400, f"{name} is not supported", name, "unsupported_parameter")
        del given[name]
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _first(error, given) from error


def _same(given: Any, neutral: Any) -> bool:
    """Equality in which 1 is 1.0 and not true."""
    return isinstance(given, bool) == isinstance(neutral, bool) and bool(given == neutral)


def _first(error: ValidationError, given: dict[str, Any]) -> ApiError:
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return ApiError(400, f"{name} is missing", name)
    if first["type"] == "extra_forbidden":
        place = ".".join(map(str, first["loc"]))
        return ApiError(400, f"{place} is not a known parameter", name, "unknown_parameter")
    messages = dict.fromkeys(entry["msg"] for entry in found if entry["loc"][0] == name)
    return ApiError(400, f"{name} is {reprlib.repr(given.get(name))}: {'; or: '.join(messages)}", name)


def bad_parameter(error: ValueError) -> ApiError:
    """The 400 of an error of validation."""
    if isinstance(error, ParameterError):
        return ApiError(400, str(error), error.parameter, error.code)
    return ApiError(400, str(error))
