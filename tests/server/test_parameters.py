"""Parameters over HTTP on the demo checkpoint: each does what it says, and drafts change none of it."""

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from ft.fast import demo
from ft.fast.text.tokenizer import Tokenizer

from .asking import GREEDY, LAWS, LENGTH, PROMPT, SEEDED, ask, both

TOKENIZER = Tokenizer.load(demo.FOLDER)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["open", "close"]}, "count": {"type": "integer", "maximum": 999}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


def id_of(text: str) -> int:
    """The token that is spelled like this."""
    return next(token for token in range(TOKENIZER.vocabulary) if TOKENIZER.piece(token) == text.encode())


@pytest.fixture(scope="module")
def plain(client: TestClient) -> dict[str, str]:
    """The texts of requests that ask for nothing, by law."""
    return {name: ask(client, **law)["choices"][0]["text"] for name, law in LAWS.items()}


def test_a_bias_bans_and_forces(client: TestClient) -> None:
    (first,) = ask(client, **GREEDY, max_tokens=1, logprobs=0)["choices"][0]["logprobs"]["tokens"]
    token = id_of(first)
    (choice,) = both(client, **GREEDY, max_tokens=64, logprobs=0, logit_bias={str(token): -100})
    assert first not in choice["logprobs"]["tokens"]
    forced = id_of("x")
    (choice,) = both(client, **GREEDY, max_tokens=12, logit_bias={str(forced): 100})
    assert choice["text"] == "x" * 12


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 1.3},
        {"min_p": 0.1},
        {"bad_words": ["self", "path", "return"]},
        {"allowed_token_ids": list(range(300, 900))},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_a_parameter_changes_the_text_and_drafts_do_not(
    client: TestClient, plain: dict[str, str], parameters: dict[str, Any], law: dict[str, Any]
) -> None:
    (choice,) = both(client, **law, **parameters)
    if "min_p" not in parameters:
        assert choice["text"] != plain["greedy" if law == GREEDY else "seeded"]
    for word in parameters.get("bad_words", ()):
        assert not re.search(rf"\b{word}\b", choice["text"])


def test_the_prompt_of_several_choices_counts_once(client: TestClient) -> None:
    one, three = (ask(client, **SEEDED, n=n, max_tokens=4)["usage"] for n in (1, 3))
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]


def test_choices_of_one_request(client: TestClient) -> None:
    choices = both(client, **SEEDED, n=3, max_tokens=16)
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["text"] for choice in choices}) == 3
    assert choices[0]["text"] == ask(client, **SEEDED, max_tokens=16)["choices"][0]["text"]
    next_seed = ask(client, temperature=0.9, seed=6, max_tokens=16)["choices"][0]["text"]
    assert choices[1]["text"] == next_seed
    two = ask(client, prompt=[PROMPT, "import os"], n=2, **SEEDED, max_tokens=2)["choices"]
    assert [choice["index"] for choice in two] == [0, 1, 2, 3]


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_structured_output(client: TestClient, law: dict[str, Any]) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA}}
    (choice,) = both(client, **law, response_format=schema, max_tokens=60)
    value = json.loads(choice["text"])
    assert value["name"] in ("open", "close") and value["count"] <= 999
    assert choice["finish_reason"] == "stop"
    pattern = {"type": "regex", "regex": "[a-f]{4}-[0-9]{3}"}
    (choice,) = both(client, **law, response_format=pattern)
    assert re.fullmatch(pattern["regex"], choice["text"])
    mixed = ask(client, prompt=[PROMPT, PROMPT], n=2, **law, response_format=pattern)["choices"]
    assert all(re.fullmatch(pattern["regex"], one["text"]) for one in mixed)


@pytest.mark.parametrize("verification", ["rejection", "coupled", "block"])
def test_every_verification_answers(client: TestClient, verification: str) -> None:
    answer = ask(client, temperature=1.0, seed=3, verification=verification)
    assert answer["usage"]["completion_tokens"] == LENGTH and answer["ft"]["tokens_per_step"] > 1


def test_a_thinking_budget_needs_a_mark_of_its_end(client: TestClient) -> None:
    body = {"prompt": PROMPT, "thinking_token_budget": 5}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert error["param"] == "thinking_token_budget" and "no </think> token" in error["message"]


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_stop_id_is_held_back_until_min_tokens(client: TestClient, law: dict[str, Any]) -> None:
    """Catches a minimum that lets a stop id through inside a run, and one that lasts for ever."""
    tokens = ask(client, **law, logprobs=0)["choices"][0]["logprobs"]["tokens"]
    stops = [id_of(token) for token in dict.fromkeys(tokens[4:12])]
    (early,) = both(client, **law, logprobs=0, stop_token_ids=stops)
    reported = early["logprobs"]["tokens"]
    assert early["finish_reason"] == "stop" and len(reported) <= 5 and id_of(reported[-1]) in stops
    (late,) = both(client, **law, logprobs=0, stop_token_ids=stops, min_tokens=16)
    reported = late["logprobs"]["tokens"]
    assert len(reported) > 16
    assert not {token for token in map(spelled, stops)} & set(reported[:16])


def spelled(token: int) -> str:
    return TOKENIZER.piece(token).decode()


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_minimum_beyond_every_context_harms_nobody(client: TestClient, path: str) -> None:
    """Catches a number that overflows the engine's tables, which ends every request."""
    limit = {"max_tokens": 2**70} if path == "completions" else {"max_tokens": None}
    answer = ask(client, path, **GREEDY, **limit, min_tokens=2**69, stop="\n")
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert client.get("/health").status_code == 200


def test_any_json_object(client: TestClient) -> None:
    form = {"type": "json_object"}
    (choice,) = both(client, "chat/completions", **GREEDY, response_format=form, bad_words=["\n"])
    assert choice["message"]["content"].startswith("{") and "\n" not in choice["message"]["content"]
