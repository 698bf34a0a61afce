"""`serve`: addresses that cannot be had. That a process answers and ends on a signal is tested with the command."""

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from ft.fast.refusal import Refusal
from ft.fast.server.app import create_app
from ft.fast.server.run import Server, serve

from .fake import FakeEngine, make_llm
from .live import until


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refusal, match=f"--host 127.0.0.1 --port {port}: .*in use.*; choose another"):
            serve(make_llm(FakeEngine()), "fake", port=port)


@pytest.mark.parametrize(("host", "port"), [("256.0.0.1", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_does_not_exist_is_named(host: str, port: int) -> None:
    with pytest.raises(Refusal, match=f"--host {host} --port {port}: "):
        serve(make_llm(FakeEngine()), "fake", host, port)


@contextmanager
def running(engine: FakeEngine, grace: float) -> Iterator[tuple[Server, str]]:
    """A server in a thread, and its address."""
    app = create_app(make_llm(engine), "fake")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(uvicorn.Config(app, log_level="critical"), app.state.loop, grace)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: server.started)
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
        thread.join(10)
        assert not thread.is_alive()


def ask(url: str, answers: list[httpx.Response], **parameters: object) -> threading.Thread:
    """A request of its own thread; the engine's steps make it last for seconds."""
    body = {"prompt": "hello", "max_tokens": 400, "temperature": 0, **parameters}

    def post() -> None:
        answers.append(httpx.post(url, json=body, timeout=20))

    thread = threading.Thread(target=post)
    thread.start()
    return thread


def slow() -> FakeEngine:
    return FakeEngine(step_seconds=0.03)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_shutdown_ends_what_outlasts_its_grace_with_an_error_that_can_be_read(signals: int) -> None:
    """The grace ends, or a second signal ends it: whole answers get 503, streams an error event."""
    whole: list[httpx.Response] = []
    stream: list[httpx.Response] = []
    engine = slow()
    with running(engine, 0.3 if signals == 1 else 60.0) as (server, url):
        threads = [ask(url, whole), ask(url, stream, stream=True)]
        until(lambda: len(engine.rows) == 2)
        for _ in range(signals):
            server.handle_exit(signal.SIGINT, None)
        for thread in threads:
            thread.join()
    assert server.interrupted
    assert whole[0].status_code == 503 and "shutting down" in whole[0].json()["error"]["message"]
    events = [line for line in stream[0].text.splitlines() if line.startswith("data: ")]
    assert "shutting down" in json.loads(events[-1][6:])["error"]["message"]


def test_a_shutdown_waits_for_what_ends_within_its_grace() -> None:
    answers: list[httpx.Response] = []
    engine = slow()
    with running(engine, 30.0) as (server, url):
        thread = ask(url, answers, max_tokens=30)
        until(lambda: len(engine.rows) == 1)
        server.handle_exit(signal.SIGTERM, None)
        thread.join()
    assert answers[0].status_code == 200 and answers[0].json()["usage"]["completion_tokens"] == 30
    assert not server.interrupted


def test_a_loop_that_is_stopped_refuses() -> None:
    async def scene() -> None:
        loop = create_app(make_llm(FakeEngine()), "fake").state.loop
        loop.start()
        await asyncio.to_thread(loop.stop)
        with pytest.raises(Exception, match="shutting down"):
            loop.open([])

    asyncio.run(scene())
