"""Parameters over HTTP on the demo checkpoint: each does what it says, and drafts change none of it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from starlette.testclient import TestClient

from ft.fast import demo
from ft.fast.llm import LLM
from ft.fast.server.app import create_app
from ft.fast.text.tokenizer import Tokenizer

PROMPT = "def read_file(path):\n"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["open", "close"]}, "count": {"type": "integer", "maximum": 999}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 5}
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    llm = LLM(
        speculative_algorithm="mtp", speculative_num_steps=3, max_running_requests=4, context_length=512
    )
    with TestClient(create_app(llm, "demo")) as running:
        yield running


def ask(client: TestClient, path: str = "completions", **parameters: Any) -> dict[str, Any]:
    body = {"max_tokens": 40, **parameters}
    if path == "completions":
        body = {"prompt": PROMPT, **body}
    else:
        body = {"messages": [{"role": "user", "content": PROMPT}], **body}
    answer = client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def both(client: TestClient, **parameters: Any) -> list[dict[str, Any]]:
    """The choices with drafts, which are those without."""
    on = ask(client, **parameters)
    off = ask(client, **parameters, speculative=False)
    assert on["ft"]["offered_by_position"] and not off["ft"]["offered_by_position"]
    assert on["choices"] == off["choices"]
    choices: list[dict[str, Any]] = on["choices"]
    return choices


@pytest.mark.parametrize("law", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_log_probabilities_are_the_same_with_drafts(
    client: TestClient, law: dict[str, Any], mode: str
) -> None:
    (choice,) = both(client, **law, logprobs=3, logprobs_mode=mode)
    report = choice["logprobs"]
    assert len(report["tokens"]) == len(report["token_logprobs"]) == len(report["text_offset"]) == 40
    assert "".join(report["tokens"]) == choice["text"]
    assert report["text_offset"][0] == 0 and report["text_offset"][1] == len(report["tokens"][0])
    assert all(len(top) == 3 for top in report["top_logprobs"])
    assert min(report["token_logprobs"]) < -0.01
    assert all(value <= 0 for value in report["token_logprobs"])
    if law == GREEDY:
        assert all(
            value == max(top.values())
            for value, top in zip(report["token_logprobs"], report["top_logprobs"], strict=True)
        )


def test_log_probabilities_of_a_stream_are_those_of_the_whole(client: TestClient) -> None:
    whole = ask(client, **SEEDED, logprobs=2)["choices"][0]["logprobs"]
    body = {"prompt": PROMPT, "max_tokens": 40, **SEEDED, "logprobs": 2, "stream": True}
    lines = client.post("/v1/completions", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    parts = [choice["logprobs"] for event in events for choice in event["choices"] if choice["logprobs"]]
    assert len(parts) > 1
    for name, values in whole.items():
        assert [value for part in parts for value in part[name]] == values


def test_log_probabilities_of_a_cut_text_end_with_it(client: TestClient) -> None:
    text = ask(client, **GREEDY)["choices"][0]["text"]
    (choice,) = both(client, **GREEDY, logprobs=0, stop=text[12:16])
    assert choice["finish_reason"] == "stop"
    assert len("".join(choice["logprobs"]["tokens"])) >= len(choice["text"])
    assert len(choice["logprobs"]["tokens"]) < 40


def test_a_bias_bans_and_forces(client: TestClient) -> None:
    llm_ids = ask(client, **GREEDY, max_tokens=1, logprobs=0)["choices"][0]["logprobs"]["tokens"]
    first = llm_ids[0]
    tokenizer = Tokenizer.load(demo.FOLDER)
    (token,) = [t for t in range(tokenizer.vocabulary) if tokenizer.piece(t) == first.encode()][:1]
    (choice,) = both(client, **GREEDY, max_tokens=64, logprobs=0, logit_bias={str(token): -100})
    assert first not in choice["logprobs"]["tokens"]
    forced = tokenizer.encode("x", plain=False)[0]
    (choice,) = both(client, **GREEDY, logit_bias={str(forced): 100})
    assert choice["text"] == "x" * 40


@pytest.mark.parametrize("law", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"frequency_penalty": 1.5},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 1.3},
        {"min_p": 0.1},
        {"bad_words": ["self", "path", "return"]},
        {"allowed_token_ids": list(range(300, 900))},
        {"stop_token_ids": [280, 281], "min_tokens": 20},
    ],
    ids=lambda parameters: next(iter(parameters)),
)
def test_a_parameter_changes_the_text_and_drafts_do_not(
    client: TestClient, parameters: dict[str, Any], law: dict[str, Any]
) -> None:
    (choice,) = both(client, **law, **parameters)
    plain = ask(client, **law)["choices"][0]
    if "min_p" not in parameters and "stop_token_ids" not in parameters:
        assert choice["text"] != plain["text"]
    for word in parameters.get("bad_words", ()):
        assert not re.search(rf"\b{word}\b", choice["text"])


def test_choices_of_one_request(client: TestClient) -> None:
    choices = both(client, **SEEDED, n=3)
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["text"] for choice in choices}) == 3
    assert choices[0]["text"] == ask(client, **SEEDED)["choices"][0]["text"]
    next_seed = ask(client, temperature=0.9, seed=6)["choices"][0]["text"]
    assert choices[1]["text"] == next_seed
    two = ask(client, prompt=[PROMPT, "import os"], n=2, **SEEDED)["choices"]
    assert [choice["index"] for choice in two] == [0, 1, 2, 3]


@pytest.mark.parametrize("law", [GREEDY, SEEDED], ids=["greedy", "seeded"])
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
    assert answer["usage"]["completion_tokens"] == 40 and answer["ft"]["tokens_per_step"] > 1


def test_a_thinking_budget_needs_a_mark_of_its_end(client: TestClient) -> None:
    body = {"prompt": PROMPT, "thinking_token_budget": 5}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert error["param"] == "thinking_token_budget" and "no </think> token" in error["message"]


def test_the_official_client_reads_log_probabilities_and_choices(client: TestClient) -> None:
    official = openai.OpenAI(
        base_url="http://testserver/v1", api_key="none", http_client=relay(client), max_retries=0
    )
    answer = official.completions.create(model="demo", prompt=PROMPT, logprobs=2, n=2, max_tokens=8, seed=1)
    assert len(answer.choices) == 2
    report = answer.choices[0].logprobs
    assert report is not None and report.top_logprobs is not None and len(report.top_logprobs) == 8


def relay(client: TestClient) -> httpx2.Client:
    """A client whose requests go to the application without a socket."""

    def send(request: httpx2.Request) -> httpx2.Response:
        answer = client.post(
            request.url.path, content=request.content, headers={"content-type": "application/json"}
        )
        return httpx2.Response(answer.status_code, content=answer.content, headers=answer.headers)

    return httpx2.Client(transport=httpx2.MockTransport(send))
