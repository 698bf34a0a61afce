"""Messages to a prompt through the checkpoint's own template, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


class ChatTemplate:
    """source: Jinja text. tokens: spellings such as bos_token that the template may use. origin: its file."""

    def __init__(self, source: str, tokens: Mapping[str, str], origin: str = "the chat template") -> None:
        self.source = source
        self.tokens = dict(tokens)
        self.origin = origin

    def render(self, messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any] | None = None) -> str:
        """The prompt that asks for the next turn of the assistant.

        extra: further variables of the template, such as enable_thinking. ValueError says which message is
        wrong, or what the template objected to.
        """
        checked = [checked_message(index, message) for index, message in enumerate(messages)]
        if not checked:
            raise ValueError("messages is empty; it needs at least one message")
        given = dict(extra or {})
        taken = sorted({*RESERVED, *self.tokens} & given.keys())
        if taken:
            raise ValueError(f"chat_template_kwargs may not set {', '.join(taken)}")
        variables = {"messages": checked, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._template.render(**variables, **self.tokens, **given)
        except TemplateError as error:
            raise ValueError(f"{self.origin} refuses the messages: {error.message or error}") from error
        except Exception as error:
            raise ValueError(f"{self.origin} fails on the messages: {error}") from error

    @cached_property
    def _template(self) -> Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = strftime_now
        return environment.from_string(self.source)


def checked_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as one string. ValueError names what is wrong with it."""
    role = message.get("role")
    if not (isinstance(role, str) and role):
        raise ValueError(f"messages[{index}].role is {role!r}; it must be a string such as user")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise ValueError(f"messages[{index}].{name} is not supported")
    return {**message, "content": _content(f"messages[{index}].content", message.get("content"))}


def _content(place: str, content: Any) -> str:
    match content:
        case str():
            return content
        case list():
            return "".join(_text(f"{place}[{n}]", part) for n, part in enumerate(content))
    raise ValueError(f"{place} is {content!r}; it must be a string or a list of text parts")


def _text(place: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        raise ValueError(f"{place} is of type {kind!r}; only text parts are supported")
    text: str = part["text"]
    return text


class GenerationTag(Extension):
    """{% generation %} marks the assistant's words for training; here its body is simply rendered."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """JSON as it is, without the escapes for HTML that the filter of this name has by default."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
