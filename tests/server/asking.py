"""What the tests ask of a server on the demo checkpoint, and how."""

import json
from typing import Any

import httpx2
import openai
from starlette.testclient import TestClient

PROMPT = "def read_file(path):\n"
LENGTH = 24
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 5}
GREEDY: dict[str, Any] = {"temperature": 0}
LAWS = {"greedy": GREEDY, "seeded": SEEDED}


def body_of(path: str, parameters: dict[str, Any]) -> dict[str, Any]:
    question = (
        {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    )
    return {**question, "max_tokens": LENGTH, **parameters}


def ask(client: TestClient, path: str = "completions", **parameters: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/{path}", json=body_of(path, parameters))
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def streamed(client: TestClient, path: str = "completions", **parameters: Any) -> list[dict[str, Any]]:
    """The choices of all chunks, in order."""
    answer = client.post(f"/v1/{path}", json=body_of(path, {**parameters, "stream": True}))
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return [choice for event in events for choice in event["choices"]]


def both(client: TestClient, path: str = "completions", **parameters: Any) -> list[dict[str, Any]]:
    """The choices with drafts, which are those without."""
    on = ask(client, path, **parameters)
    off = ask(client, path, **parameters, speculative=False)
    assert on["ft"]["offered_by_position"] and not off["ft"]["offered_by_position"]
    assert on["choices"] == off["choices"]
    choices: list[dict[str, Any]] = on["choices"]
    return choices


def official(client: TestClient) -> openai.OpenAI:
    """The official client, whose requests go to the application without a socket."""

    def send(request: httpx2.Request) -> httpx2.Response:
        answer = client.post(
            request.url.path, content=request.content, headers={"content-type": "application/json"}
        )
        return httpx2.Response(answer.status_code, content=answer.content, headers=answer.headers)

    http = httpx2.Client(transport=httpx2.MockTransport(send))
    return openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http, max_retries=0)
