"""What clients send: the parameters of both endpoints, strictly typed, and the rest sorted into harmless and not.

A parameter that is not supported is refused unless its value asks for nothing. null counts as not given.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ft.fast import validate
from ft.fast.generation import Generation
from ft.fast.llm import LLM, Prompt
from ft.fast.server.errors import ApiError
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
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
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

COMPLETION_MAX_TOKENS = 16
"""What /v1/completions generates when max_tokens is not given."""


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = False


class Parameters(BaseModel):
    """Parameters of both endpoints; None where the checkpoint's default or the server's applies.

    Beyond OpenAI's: top_k, min_p, ignore_eos, and speculative, which set to false turns drafts off.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] = []
    ignore_eos: bool = False
    speculative: bool = True

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def options(self, defaults: dict[str, float], max_tokens: int | None) -> Options:
        """The options of one request; defaults: sampling parameters of the checkpoint by name."""
        law: dict[str, Any] = {"temperature": 1.0, **defaults}
        for name in ("temperature", "top_p", "top_k", "min_p"):
            if getattr(self, name) is not None:
                law[name] = getattr(self, name)
        return Options(
            seed=self.seed,
            max_tokens=max_tokens,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            speculative=self.speculative,
            **law,
        )


class CompletionParameters(Parameters):
    """Body of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]

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
        prompts = self.prompts()
        return [llm.prepare(f"{request_id}-{n}", prompt, options) for n, prompt in enumerate(prompts)]


class ChatParameters(Parameters):
    """Body of /v1/chat/completions. chat_template_kwargs: further variables of the chat template."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] = {}

    def prepare(self, llm: LLM, request_id: str) -> list[Generation]:
        """The one generation of the request. ParameterError names what is out of range."""
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
            return [llm.prepare(request_id, prompt, options, plain=False)]
        except ParameterError as error:
            parameter = "messages" if error.parameter == "prompt" else error.parameter
            raise ApiError(400, str(error), parameter, error.code) from error


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
        raise _first(error) from error


def _same(given: Any, neutral: Any) -> bool:
    """Equality in which 1 is 1.0 and not true."""
    return isinstance(given, bool) == isinstance(neutral, bool) and bool(given == neutral)


def _first(error: ValidationError) -> ApiError:
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return ApiError(400, f"{name} is missing", name)
    if first["type"] == "extra_forbidden":
        place = ".".join(map(str, first["loc"]))
        return ApiError(400, f"{place} is not a known parameter", name, "unknown_parameter")
    messages = dict.fromkeys(entry["msg"] for entry in found if entry["loc"][0] == name)
    return ApiError(400, f"{name}: {'; or: '.join(messages)}", name)


def bad_parameter(error: ValueError) -> ApiError:
    """The 400 of an error of validation."""
    if isinstance(error, ParameterError):
        return ApiError(400, str(error), error.parameter, error.code)
    return ApiError(400, str(error))
