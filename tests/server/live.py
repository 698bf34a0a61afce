"""A real server on a free loopback port, in a thread, around a fake engine."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import openai
import uvicorn

from ft.fast.server.app import create_app

from .fake import FakeEngine, make_llm

MODEL = "fake"
PATIENCE = 10.0


@dataclass(frozen=True)
class Live:
    """url: without /v1. client: the official one, without retries. http: a bare one."""

    engine: FakeEngine
    url: str
    client: openai.OpenAI
    http: httpx.Client

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels, as the text format spells them."""
        lines = self.http.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def still_answers(self) -> None:
        """A small request succeeds, and all slots are free after it."""
        answer = self.client.completions.create(model=MODEL, prompt="zz", max_tokens=5, temperature=0)
        assert answer.usage is not None and answer.usage.completion_tokens == 5
        until(lambda: self.engine.idle)
        assert self.engine.free_slots == self.engine.slots


@contextmanager
def serving(engine: FakeEngine, api_key: str | None = None) -> Iterator[Live]:
    """Start, and stop as a signal would."""
    app = create_app(make_llm(engine), MODEL, api_key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started)
            key = api_key or "none"
            with (
                openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE) as client,
                httpx.Client(base_url=url, timeout=PATIENCE) as http,
            ):
                yield Live(engine, url, client, http)
        finally:
            server.should_exit = True
            thread.join()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does. AssertionError when it does not."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
