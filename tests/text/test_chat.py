"""Chat templates: the stored one, what real ones rely on, and everything that is refused."""

from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ft.fast.text.chat import ChatTemplate
from ft.fast.text.tokenizer import Tokenizer

from .stored import FOLDER, change

USER = {"role": "user", "content": "Grüß Gott"}


def render(source: str, *messages: dict[str, Any], **extra: Any) -> str:
    return ChatTemplate(source, {"eos_token": "<e>"}).render(messages or [USER], extra)


def test_the_stored_template_asks_for_the_next_turn() -> None:
    chat = Tokenizer.load(FOLDER).settings.chat
    assert chat is not None
    prompt = chat.render([{"role": "system", "content": "Be brief."}, USER])
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGrüß Gott<|im_end|>\n"
    assert prompt == expected + "<|im_start|>assistant\n"


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", {"role": "user", "content": parts}) == "ab"


TEMPLATES = pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  {% set x = 1 %}\na\n{% endif %}\n", "a\n"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Grüß Gott"}'),
        ("{{ {'a': '<&>'} | tojson(indent=1) }}", '{\n "a": "<&>"\n}'),
        ("{% for n in [1, 2, 3] %}{% if n == 2 %}{% continue %}{% endif %}{{ n }}{% endfor %}", "13"),
        ("{% generation %}a{{ eos_token }}{% endgeneration %}b", "a<e>b"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
        ("{{ enable_thinking is defined }}", "False"),
    ],
)


@TEMPLATES
def test_what_templates_rely_on(source: str, expected: str) -> None:
    assert render(source) == expected


@TEMPLATES
def test_the_renderer_that_templates_are_written_for_agrees(source: str, expected: str) -> None:
    """Catches an expectation above that is only ours."""
    rendered: Any = render_jinja_template(
        [[USER]], chat_template=source, add_generation_prompt=True, eos_token="<e>"
    )
    assert rendered[0] == [expected]


def test_a_template_may_take_further_variables() -> None:
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no system turn here') }}", "no system turn here"),
        ("{% if %}", "refuses the messages"),
        ("{{ messages[0].nothing.more }}", "has no attribute"),
        ("{{ 1 + 'a' }}", "fails on the messages"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_a_template_that_fails_gives_a_value_error(source: str, message: str) -> None:
    """Catches an error of the template, or an attack in it, that would become a 500 or run."""
    with pytest.raises(ValueError, match=message):
        render(source)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({}, r"messages\[0\].role is None"),
        ({"role": 1, "content": "a"}, r"messages\[0\].role is 1"),
        ({"role": "user"}, r"messages\[0\].content is None"),
        ({"role": "user", "content": 3}, r"messages\[0\].content is 3"),
        ({"role": "user", "content": [{"type": "image_url"}]}, r"content\[0\] is of type 'image_url'"),
        ({"role": "user", "content": ["a"]}, r"content\[0\] is of type None"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "tool_calls is not supported"),
    ],
)
def test_a_bad_message_is_named(message: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        render("{{ messages }}", message)


def test_no_messages_are_refused() -> None:
    with pytest.raises(ValueError, match="messages is empty"):
        ChatTemplate("a", {}).render([])


def test_variables_of_the_renderer_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match="may not set eos_token, messages"):
        ChatTemplate("a", {"eos_token": ""}).render([USER], {"messages": [], "eos_token": "x"})


def test_a_file_of_its_own_wins_over_the_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file {{ eos_token }}")
    chat = Tokenizer.load(folder).settings.chat
    assert chat is not None and chat.render([USER]) == "from the file <|im_end|>"


def test_the_default_of_several_templates(folder: Path) -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    change(folder, "tokenizer_config.json", chat_template=named)
    chat = Tokenizer.load(folder).settings.chat
    assert chat is not None and chat.render([USER]) == "d"


def test_a_folder_without_a_template(folder: Path) -> None:
    change(folder, "tokenizer_config.json", chat_template=None)
    assert Tokenizer.load(folder).settings.chat is None
