"""Text over HTTP with the official client: whole and streamed, both endpoints, ends and counts inside runs."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types import Completion

from .conftest import WIDE
from .fake import TOKENIZER, by_byte, expected
from .live import MODEL, Live


def whole(live: Live, prompt: Any, **options: Any) -> Completion:
    options = {"temperature": 0, **options}
    answer = live.client.completions.create(model=MODEL, prompt=prompt, **options)
    assert isinstance(answer, Completion)
    return answer


def streamed(live: Live, prompt: Any, **options: Any) -> list[Completion]:
    options = {"temperature": 0, "stream_options": {"include_usage": True}, **options}
    return list(live.client.completions.create(model=MODEL, prompt=prompt, stream=True, **options))


def joined(chunks: Sequence[Completion], index: int = 0) -> str:
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)


def finish(chunks: Sequence[Completion]) -> list[str]:
    return [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]


def test_a_whole_answer(live: Live) -> None:
    answer = whole(live, "hello", max_tokens=30)
    (choice,) = answer.choices
    assert choice.text == expected("hello", 30)
    assert (choice.finish_reason, choice.logprobs, choice.index) == ("length", None, 0)
    assert (answer.object, answer.model, answer.id[:5]) == ("text_completion", MODEL, "cmpl-")


@pytest.mark.parametrize(
    "prompt",
    [["one", "two"], list(by_byte("one")), [list(by_byte("one")), list(by_byte("two"))]],
    ids=["texts", "ids", "lists of ids"],
)
def test_every_form_of_prompt(live: Live, prompt: Any) -> None:
    """Catches choices that are mixed up, and a stream whose chunks carry the wrong index."""
    texts = ["one"] if isinstance(prompt[0], int) else ["one", "two"]
    answer, chunks = whole(live, prompt, max_tokens=20), streamed(live, prompt, max_tokens=20)
    for index, text in enumerate(texts):
        assert answer.choices[index].index == index
        assert answer.choices[index].text == joined(chunks, index) == expected(text, 20)
    assert finish(chunks) == ["length"] * len(texts)
    assert answer.usage is not None and answer.usage.completion_tokens == 20 * len(texts)


@pytest.mark.parametrize(
    ("prompt", "options", "text", "reason", "tokens"),
    [
        ("stop id", {"max_tokens": 5}, "ab", "stop", 3),
        ("stop id", {"max_tokens": 3}, "ab", "stop", 3),
        ("stop id", {"max_tokens": 2}, "ab", "length", 2),
        ("stop id", {"max_tokens": 7, "extra_body": {"ignore_eos": True}}, "abcdef", "length", 7),
        ("stop string", {"max_tokens": 99, "stop": "STOP"}, "ab ", "stop", 7),
        ("stop string", {"max_tokens": 99, "stop": ["zz", "OP c", "P"]}, "ab STO", "stop", 7),
        ("stop string", {"max_tokens": 5, "stop": ["STOP"]}, "ab ST", "length", 5),
        ("wide", {"max_tokens": 99}, WIDE, "stop", 11),
        ("wide", {"max_tokens": 6}, "né\ufffd", "length", 6),
    ],
)
def test_ends_inside_a_run(
    live_run: Live, prompt: str, options: dict[str, Any], text: str, reason: str, tokens: int
) -> None:
    """Catches an end that depends on where runs begin: leaked tokens, a wrong reason, a torn character."""
    answer, chunks = whole(live_run, prompt, **options), streamed(live_run, prompt, **options)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (text, reason)
    assert (joined(chunks), finish(chunks)) == (text, [reason])
    for usage in (answer.usage, chunks[-1].usage):
        assert usage is not None
        assert usage.completion_tokens == tokens
        assert usage.total_tokens == usage.prompt_tokens + tokens
        details = usage.completion_tokens_details
        assert details is not None
        assert details.reasoning_tokens == 0
        assert (details.accepted_prediction_tokens or 0) <= tokens


def test_no_delta_holds_half_a_character(live_run: Live) -> None:
    chunks = streamed(live_run, "wide", max_tokens=99)
    assert all("\ufffd" not in choice.text for chunk in chunks for choice in chunk.choices)


def test_counts_of_speculation(live: Live) -> None:
    """Catches usage that does not reconcile with the steps behind it."""
    answer = whole(live, "hello", max_tokens=40)
    usage, speculation = answer.usage, answer.model_extra["ft"]  # type: ignore[index]
    assert usage is not None and usage.completion_tokens_details is not None
    accepted = usage.completion_tokens_details.accepted_prediction_tokens or 0
    rejected = usage.completion_tokens_details.rejected_prediction_tokens or 0
    assert accepted + rejected == sum(speculation["offered_by_position"]) == 3 * speculation["steps"]
    assert speculation["tokens_per_step"] == 40 / speculation["steps"] > 1
    assert len(speculation["accepted_by_position"]) == 3


def test_speculation_can_be_turned_off(live: Live) -> None:
    """Catches drafts that go on for a request that asked for none, and a text that they change."""
    plain = whole(live, "hello", max_tokens=40, extra_body={"speculative": False})
    assert plain.choices[0].text == expected("hello", 40)
    assert plain.model_extra is not None
    assert plain.model_extra["ft"] == {
        "steps": 40,
        "tokens_per_step": 1.0,
        "offered_by_position": [],
        "accepted_by_position": [],
    }
    assert live.engine.added[-1].drafts == 0


def test_cached_tokens_are_told(live: Live) -> None:
    prompt = "a prompt of some length"
    first, second = (whole(live, prompt, max_tokens=2).usage for _ in range(2))
    assert first is not None and second is not None
    assert first.prompt_tokens == second.prompt_tokens == len(by_byte(prompt))
    assert first.prompt_tokens_details is not None and second.prompt_tokens_details is not None
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == 20


def test_the_checkpoint_gives_the_defaults_and_the_client_overrides_them(live: Live) -> None:
    """Catches a server that samples by other rules than the checkpoint recommends."""
    live.client.completions.create(model=MODEL, prompt="hello")
    request = live.engine.added[-1]
    law = request.sampling
    assert (law.temperature, law.top_k, law.top_p, law.min_p, law.seed) == (1.0, 20, 0.95, 0.0, None)
    assert request.max_tokens == 16
    body = {"top_k": 0, "min_p": 0.1}
    live.client.completions.create(
        model=MODEL, prompt="a", temperature=0.5, top_p=1, seed=-4, extra_body=body
    )
    law = live.engine.added[-1].sampling
    assert (law.temperature, law.top_k, law.top_p, law.min_p, law.seed) == (0.5, 0, 1.0, 0.1, -4)


def test_chat(live: Live) -> None:
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    answer = live.client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        max_completion_tokens=12,
        temperature=0,
        user="someone",
        n=1,
    )
    (choice,) = answer.choices
    request = live.engine.added[-1]
    assert TOKENIZER.encode(prompt, plain=False) == list(request.prompt)
    assert choice.message.content is not None and len(choice.message.content) == 12
    assert (choice.message.role, choice.finish_reason, answer.object) == (
        "assistant",
        "length",
        "chat.completion",
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 12


def test_chat_streams(live: Live) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    options: Any = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}
    answer = live.client.chat.completions.create(**options)
    chunks = list(
        live.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == answer.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_without_a_limit_goes_on_to_the_end(live: Live) -> None:
    answer = live.client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0
    )
    assert answer.usage is not None and answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


def test_the_bytes_of_a_stream(live: Live) -> None:
    """Catches a wrong frame, an escaped text, and usage that nobody asked for."""
    body = {"prompt": "wide", "stream": True, "temperature": 0, "max_tokens": 20}
    answer = live.http.post("/v1/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == WIDE
    assert not any("usage" in chunk for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]


def test_models(live: Live) -> None:
    (model,) = live.client.models.list().data
    assert (model.id, model.object, model.model_extra) == (MODEL, "model", {"max_model_len": 512})
    assert live.client.models.retrieve(MODEL) == model
