"""Every refusal: status, JSON and the parameter it names; and the server serves on after it."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from .fake import FakeEngine
from .live import MODEL, Live, serving

CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def serves_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test here, the shared server still answers."""
    yield
    if "live" in request.fixturenames:
        request.getfixturevalue("live").still_answers()


def refused(live: Live, path: str, status: int, **request: Any) -> dict[str, Any]:
    """The error of a request, whose shape is checked."""
    answer = live.http.request(request.pop("method", "POST"), path, **request)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert answer.json().keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return error


@pytest.mark.parametrize(
    ("parameters", "named", "message"),
    [
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must be at least 1"),
        ({"max_tokens": "5"}, "max_tokens", "valid integer"),
        ({"max_tokens": True}, "max_tokens", "valid integer"),
        ({"temperature": 3}, "temperature", "temperature is 3.0; it must be from 0 to 2"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "above 0 and at most 1"),
        ({"min_p": 2}, "min_p", "from 0 to 1"),
        ({"top_k": -7}, "top_k", "at least 1"),
        ({"seed": 2**70}, "seed", "from -2**63"),
        ({"seed": 1.5}, "seed", "valid integer"),
        ({"stop": [""]}, "stop", "one character or more"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": 5}, "stop", "valid string"),
        ({"stream": "yes"}, "stream", "valid boolean"),
        ({"speculative": 0}, "speculative", "valid boolean"),
        ({"ignore_eos": "no"}, "ignore_eos", "valid boolean"),
        ({"stream_options": {"x": 1}}, "stream_options", "stream_options.x is not a known parameter"),
        ({"echo": True}, "echo", "echo is not supported"),
        ({"n": 0}, "n", "from 1 to 16"),
        ({"n": 17}, "n", "from 1 to 16"),
        ({"n": True}, "n", "integer"),
        ({"n": 2, "best_of": 3}, "best_of", "n, which is 2"),
        ({"best_of": 2}, "best_of", "n, which is 1"),
        ({"n": 16, "prompt": ["a"] * 9}, "n", "n is 16 for 9 prompts; at most 128 choices"),
        ({"prompt": ["a"] * 129}, "prompt", "prompt has 129 entries; at most 128 choices"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"logprobs": -1}, "logprobs", "from 0 to 5"),
        ({"logprobs": 6}, "logprobs", "from 0 to 5"),
        ({"logprobs_mode": "log"}, "logprobs_mode", "raw, processed"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "from -100 to 100"),
        ({"logit_bias": {"5": "1"}}, "logit_bias", "number"),
        ({"logit_bias": {"288": 1}}, "logit_bias", "ids are 0 to 287"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "decimal"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "decimal"),
        ({"logit_bias": {"05": 1}}, "logit_bias", "decimal"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias", "decimal"),
        ({"logit_bias": {"5": -100.5}}, "logit_bias", "from -100 to 100"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "at most 1024"),
        ({"logit_bias": [5]}, "logit_bias", "dictionary"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "from -2 to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty", "from -2 to 2"),
        ({"frequency_penalty": "1"}, "frequency_penalty", "number"),
        ({"presence_penalty": 2.5}, "presence_penalty", "from -2 to 2"),
        ({"presence_penalty": -3}, "presence_penalty", "from -2 to 2"),
        ({"repetition_penalty": 1e-9}, "repetition_penalty", "from 0.01 to 10"),
        ({"repetition_penalty": 11}, "repetition_penalty", "from 0.01 to 10"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "1 to 1024"),
        ({"allowed_token_ids": [288]}, "allowed_token_ids", "ids are 0 to 287"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids", "ids are 0 to 287"),
        ({"allowed_token_ids": [10**30]}, "allowed_token_ids", "ids are 0 to 287"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most max_tokens, which is 8"),
        ({"stop_token_ids": [288]}, "stop_token_ids", "ids are 0 to 287"),
        ({"stop_token_ids": list(range(20))}, "stop_token_ids", "at most 16"),
        ({"min_tokens": 17}, "min_tokens", "at most max_tokens, which is 16"),
        ({"min_tokens": 1.5}, "min_tokens", "integer"),
        ({"stop_token_ids": [True]}, "stop_token_ids", "integer"),
        ({"bad_words": [""]}, "bad_words", "one character or more"),
        ({"bad_words": "path"}, "bad_words", "list"),
        ({"bad_words": ["a" * 40]}, "bad_words", "at most 16"),
        ({"bad_words": [chr(97 + n % 26) * (1 + n // 26) for n in range(40)]}, "bad_words", "at most 64"),
        ({"thinking_token_budget": -1}, "thinking_token_budget", "at least 0"),
        ({"thinking_token_budget": 0.5}, "thinking_token_budget", "integer"),
        ({"verification": "typical"}, "verification", "rejection, coupled, block"),
        ({"verification": 2}, "verification", "string"),
        ({"response_format": {"type": "xml"}}, "response_format", "it must be"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "it must be"),
        ({"response_format": {"type": "regex", "regex": "a("}}, "response_format", "invalid regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}},
            "response_format",
            "foo",
        ),
        ({"response_format": {"type": "json_object"}, "min_tokens": 1}, "response_format", "min_tokens"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "response_format", "ignore_eos"),
        (
            {"response_format": {"type": "json_object"}, "allowed_token_ids": [1]},
            "response_format",
            "allowed_token_ids",
        ),
        (
            {"response_format": {"type": "json_object"}, "thinking_token_budget": 5},
            "response_format",
            "thinking_token_budget",
        ),
        (
            {"response_format": {"type": "json_object"}, "prompt": "<think>"},
            "response_format",
            "a prompt that leaves thinking open",
        ),
        ({"suffix": "x"}, "suffix", "suffix is not supported"),
        ({"temprature": 1}, "temprature", "temprature is not a known parameter"),
    ],
)
def test_a_bad_parameter(live: Live, parameters: dict[str, Any], named: str, message: str) -> None:
    """Catches a parameter that is dropped in silence although it asks for another output."""
    for stream in (False, True):
        body = {"model": MODEL, "prompt": "hello", "stream": stream, **parameters}
        error = refused(live, "/v1/completions", 400, json=body)
        assert error["param"] == named
        assert message in error["message"]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt is empty"),
        ([], "at least one token"),
        ([""], "prompt is empty"),
        ([[]], "prompt is empty"),
        ([288], "prompt has the token id 288 at index 0"),
        ([-1], "prompt has the token id -1 at index 0"),
        ([10**30], "prompt has the token id 1000"),
        ([1] * 512, "prompt has 512 tokens"),
        (["a", 1], "prompt"),
        ([1.5], "prompt"),
        ({"text": "a"}, "prompt"),
        (None, "prompt is missing"),
    ],
)
def test_a_bad_prompt(live: Live, prompt: Any, message: str) -> None:
    error = refused(live, "/v1/completions", 400, json={"model": MODEL, "prompt": prompt})
    assert error["param"] == "prompt"
    assert message in error["message"]
    assert (error["code"] == "context_length_exceeded") == (prompt == [1] * 512)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
        ({}, "messages"),
        ({"messages": CHAT, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": CHAT, "logprobs": 2}, "logprobs"),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": CHAT, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"messages": CHAT, "logit_bias": {"a": 1}}, "logit_bias"),
        ({"messages": CHAT, "max_completion_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"messages": CHAT, "n": 99}, "n"),
        ({"messages": CHAT, "response_format": {"type": "json"}}, "response_format"),
        ({"messages": CHAT, "tools": [{"type": "function"}]}, "tools"),
        ({"messages": CHAT, "tool_choice": "required"}, "tool_choice"),
        ({"messages": CHAT, "reasoning_effort": "low"}, "reasoning_effort"),
        ({"messages": CHAT, "prompt": "a"}, "prompt"),
        ({"messages": CHAT, "chat_template_kwargs": {"messages": []}}, "messages"),
    ],
)
def test_a_bad_chat(live: Live, parameters: dict[str, Any], named: str) -> None:
    error = refused(live, "/v1/chat/completions", 400, json={"model": MODEL, **parameters})
    assert error["param"] == named


def test_parameters_that_ask_for_nothing_are_accepted(live: Live) -> None:
    """Catches a client's defaults, sent along, that would be refused."""
    body = {
        "model": MODEL,
        "messages": CHAT,
        "max_tokens": 3,
        "n": 1,
        "logprobs": False,
        "logit_bias": None,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "stop": None,
        "seed": None,
        "stream_options": None,
        "temperature": None,
    }
    assert live.http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 100_000, b'{"seed": ' + b"9" * 5000 + b"}"],
    ids=["empty", "torn", "no text", "half a surrogate", "deep", "long number"],
)
def test_a_body_that_is_no_json(live: Live, content: bytes) -> None:
    error = refused(live, "/v1/completions", 400, content=content)
    assert error["code"] == "invalid_json"


@pytest.mark.parametrize("content", [b"[]", b"1", b"null", b'"a"'])
def test_a_body_that_is_no_object(live: Live, content: bytes) -> None:
    assert "not an object" in refused(live, "/v1/chat/completions", 400, content=content)["message"]


def test_numbers_that_json_does_not_have(live: Live) -> None:
    for number in (b"NaN", b"Infinity", b"1e999"):
        content = b'{"prompt": "a", "temperature": ' + number + b"}"
        assert refused(live, "/v1/completions", 400, content=content)["param"] == "temperature"


def test_a_model_that_is_not_served(live: Live) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        live.client.completions.create(model="other", prompt="a")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    refused(live, "/v1/models/other", 404, method="GET")


def test_a_model_need_not_be_named(live: Live) -> None:
    assert live.http.post("/v1/completions", json={"prompt": "a"}).json()["model"] == MODEL


def test_an_unknown_route(live: Live) -> None:
    assert refused(live, "/v1/embeddings", 404)["code"] == "not_found"
    assert refused(live, "/docs", 404, method="GET")["message"] == "GET /docs: Not Found"


def test_a_wrong_method(live: Live) -> None:
    assert refused(live, "/v1/completions", 405, method="GET")["code"] == "method_not_allowed"
    assert refused(live, "/health", 405)["code"] == "method_not_allowed"


def test_what_the_engine_refuses(live: Live) -> None:
    """Catches a refusal of the engine that becomes a 500 or stays without an answer."""
    engine = live.engine
    add, engine.add = engine.add, no_room  # type: ignore[method-assign]
    try:
        error = refused(live, "/v1/completions", 400, json={"prompt": ["a", "b"], "stream": True})
    finally:
        engine.add = add  # type: ignore[method-assign]
    assert error["message"] == "the pool is too small"


def no_room(request: object) -> None:
    raise ValueError("the pool is too small")


def test_a_key_is_asked_for_and_taken() -> None:
    with serving(FakeEngine(), api_key="s3cret") as live:
        body = {"prompt": "a", "max_tokens": 1}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            error = refused(live, "/v1/completions", 401, json=body, headers=headers)
            assert error["code"] == "invalid_api_key"
        refused(live, "/v1/models", 401, method="GET", headers={"Authorization": "Bearer \xe9".encode()})
        assert not live.engine.added
        assert live.client.completions.create(model=MODEL, prompt="a").choices
        assert live.http.get("/health").status_code == 200
