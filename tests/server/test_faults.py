"""What goes wrong while requests run: clients that leave, an engine that fails, a server that is stopped."""

import json
import socket
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from ft.fast.generation import Delta, Generation
from ft.fast.request import Update

from .fake import FakeEngine, by_byte, expected
from .live import MODEL, PATIENCE, Live, serving, until

ENDLESS = {"prompt": "endless", "max_tokens": 400, "temperature": 0}


@pytest.fixture
def slow() -> Iterator[Live]:
    """A server whose requests last long enough to be interrupted."""
    with serving(FakeEngine(step_seconds=0.01, run=2)) as running:
        yield running


def events(lines: Iterator[str]) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in lines if line)


def post(live: Live, body: dict[str, object]) -> socket.socket:
    """Send a request and leave its answer unread."""
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def test_a_client_that_leaves_its_stream(slow: Live) -> None:
    """Catches a slot that stays taken, and a prefix that the next request finds half finished."""
    engine = slow.engine
    with slow.http.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as answer:
        texts = events(answer.iter_lines())
        begun = ""
        while len(begun) < 10:
            begun += json.loads(next(texts))["choices"][0]["text"]
    until(lambda: engine.aborted == [engine.added[0].id])
    until(lambda: engine.idle)
    assert engine.free_slots == engine.slots
    prompt = "endless" + begun[:8]
    answer_of_next = slow.client.completions.create(model=MODEL, prompt=prompt, max_tokens=9, temperature=0)
    assert answer_of_next.choices[0].text == expected("endless", 17)[8:]
    slow.still_answers()


def test_a_client_that_leaves_without_an_answer(slow: Live) -> None:
    """Catches a request that runs to its end for nobody."""
    connection = post(slow, ENDLESS)
    until(lambda: len(slow.engine.rows) == 1)
    connection.close()
    until(lambda: len(slow.engine.aborted) == 1)
    slow.still_answers()
    assert slow.metrics()['ft_requests_total{finish="abort"}'] == 1


def test_a_client_that_leaves_the_queue() -> None:
    """Catches a request that is served although its client left while it waited."""
    with serving(FakeEngine(step_seconds=0.01, slots=1)) as live:
        first, second = post(live, ENDLESS), post(live, {**ENDLESS, "stream": True})
        until(lambda: len(live.engine.waiting) == 1)
        second.close()
        until(lambda: len(live.engine.aborted) == 1)
        assert live.engine.aborted == [live.engine.added[1].id]
        first.close()
        live.still_answers()


def test_a_stop_string_ends_the_request_in_the_engine() -> None:
    """Catches an engine that goes on to max_tokens for an answer that is out already."""
    engine = FakeEngine({"?": by_byte("ab STOP")}, step_seconds=0.01)
    with serving(engine) as live:
        body = {"prompt": "?", "max_tokens": 400, "stop": "STOP", "temperature": 0}
        assert live.http.post("/v1/completions", json=body).json()["choices"][0]["text"] == "ab "
        until(lambda: engine.aborted == [engine.added[0].id])
        assert live.metrics()['ft_requests_total{finish="stop"}'] == 1
        live.still_answers()


def test_one_of_several_prompts_is_aborted_with_the_others(slow: Live) -> None:
    connection = post(slow, {**ENDLESS, "prompt": ["a", "b", "c"]})
    until(lambda: len(slow.engine.rows) == 3)
    connection.close()
    until(lambda: len(slow.engine.aborted) == 3)
    slow.still_answers()


def test_more_clients_than_slots() -> None:
    """Catches answers that go to another client, and requests that are never admitted."""
    with serving(FakeEngine(slots=4)) as live, ThreadPoolExecutor(12) as pool:
        prompts = [f"{n} client" for n in range(24)]

        def ask(prompt: str) -> str:
            answer = live.client.completions.create(model=MODEL, prompt=prompt, max_tokens=40, temperature=0)
            return answer.choices[0].text

        assert list(pool.map(ask, prompts)) == [expected(prompt, 40) for prompt in prompts]


def test_an_exception_fails_those_it_meets_and_no_one_after() -> None:
    """Catches a hanging client, a server that stays ill, and a fault that /health does not tell."""
    engine = FakeEngine(fail=deque([None, None, None, RuntimeError("boom")]))
    with serving(engine) as live:
        assert live.http.get("/health").json() == {"status": "ok"}
        with pytest.raises(openai.InternalServerError) as caught:
            live.client.completions.create(model=MODEL, prompt="a", max_tokens=400)
        assert caught.value.message.endswith("the engine failed: RuntimeError: boom")
        assert engine.aborted == [engine.added[0].id]
        health = live.http.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "failing", "error": "RuntimeError: boom"}
        live.still_answers()
        assert live.http.get("/health").json() == {"status": "ok"}
        assert live.metrics()["ft_engine_errors_total"] == 1


def test_an_exception_in_the_middle_of_a_stream() -> None:
    """Catches a stream that breaks off without a word, or that looks complete."""
    engine = FakeEngine(fail=deque([*[None] * 5, RuntimeError("boom")]), step_seconds=0.01)
    with serving(engine) as live:
        body = {**ENDLESS, "stream": True}
        *texts, last = live.http.post("/v1/completions", json=body).text.strip().split("\n\n")
        assert texts
        assert json.loads(last.removeprefix("data: "))["error"]["message"].endswith("boom")
        engine.fail = deque([*[None] * 5, RuntimeError("boom")])
        with pytest.raises(openai.APIError, match="boom"):
            list(live.client.completions.create(model=MODEL, prompt="a", max_tokens=400, stream=True))
        live.still_answers()


def test_an_engine_that_fails_with_nothing_to_do_is_dead() -> None:
    """Catches a thread that spins or ends, so that clients would wait for ever."""
    engine = FakeEngine(broken=RuntimeError("the device is lost"))
    with serving(engine) as live:
        with pytest.raises(openai.InternalServerError):
            live.client.completions.create(model=MODEL, prompt="a")
        until(lambda: live.http.get("/health").json()["status"] == "dead")
        answer = live.http.post("/v1/completions", json={"prompt": "a"})
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "the engine failed: RuntimeError: the device is lost"
        assert engine.calls == 2


def test_a_request_that_the_engine_gives_up() -> None:
    with serving(FakeEngine(poison="bad")) as live, ThreadPoolExecutor(1) as pool:
        good = pool.submit(live.http.post, "/v1/completions", json={**ENDLESS, "prompt": "good"})
        bad = live.http.post("/v1/completions", json={"prompt": ["fine", "bad"]})
        assert (bad.status_code, bad.json()["error"]["message"]) == (500, "the logits are not finite")
        assert good.result().json()["choices"][0]["text"] == expected("good", 400)
        assert live.http.get("/health").status_code == 200
        live.still_answers()


def test_a_fault_of_ours_with_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an exception between engine and text that ends the thread."""
    take = Generation.take

    def failing(self: Generation, update: Update) -> Delta:
        if self.request.prompt == by_byte("bad"):
            raise KeyError("no such piece")
        return take(self, update)

    monkeypatch.setattr(Generation, "take", failing)
    with serving(FakeEngine()) as live:
        assert live.http.post("/v1/completions", json={"prompt": "bad"}).status_code == 500
        live.still_answers()


def test_a_stop_while_requests_run() -> None:
    """Catches a server that does not end, or leaves its requests in the engine."""
    engine = FakeEngine(step_seconds=0.02, run=1)
    with ThreadPoolExecutor(1) as pool:
        with serving(engine) as live:
            url = f"{live.url}/v1/completions"
            answer = pool.submit(httpx.post, url, json=ENDLESS, timeout=PATIENCE)
            until(lambda: len(engine.rows) == 1)
        error = answer.exception()
        assert isinstance(error, httpx.HTTPError) or answer.result().status_code >= 500
    assert engine.free_slots == engine.slots
