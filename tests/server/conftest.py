"""Servers that tests share when they leave nothing behind."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from ft.fast.llm import LLM
from ft.fast.server.app import create_app

from .fake import END, FakeEngine, by_byte
from .live import Live, serving

WIDE = "né😀漢"
STOPPING = (*by_byte("ab"), END, *by_byte("cdef"))
SCRIPTS = {
    "stop id": STOPPING,
    "stop string": by_byte("ab STOP cdefghij"),
    "wide": (*by_byte(WIDE), END),
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n": (),
}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server whose engine runs without a pause."""
    with serving(FakeEngine(SCRIPTS)) as running:
        yield running


@pytest.fixture(scope="module", params=[1, 2, 3, 5, 8])
def live_run(request: pytest.FixtureRequest) -> Iterator[Live]:
    """A server whose engine emits runs of one length."""
    with serving(FakeEngine(SCRIPTS, drafts=7, run=request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """A server on the demo checkpoint that drafts three tokens a step."""
    llm = LLM(
        speculative_algorithm="mtp", speculative_num_steps=3, max_running_requests=4, context_length=512
    )
    with TestClient(create_app(llm, "demo")) as running:
        yield running
