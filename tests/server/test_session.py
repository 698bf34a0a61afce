"""A session on its own: who aborts what when a client leaves or a stream ends early."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ft.fast.generation import Delta, Generation
from ft.fast.request import Update
from ft.fast.server import stream
from ft.fast.server.errors import CLIENT_CLOSED, ApiError
from ft.fast.server.loop import EngineLoop
from ft.fast.server.replies import TextReply
from ft.fast.server.session import Session
from ft.fast.server.stats import Stats
from ft.fast.validate import Options

from .fake import TOKENIZER, FakeEngine, make_llm


def generations() -> list[Generation]:
    llm = make_llm(FakeEngine())
    return [llm.prepare(name, "hello", Options()) for name in ("first", "second")]


def test_a_client_that_leaves_before_anybody_reads() -> None:
    """Catches requests that run on because nothing had begun to wait for their events."""

    async def scene() -> list[str]:
        aborted: list[str] = []
        session = Session(generations(), aborted.append)
        session.watch(asyncio.sleep(0))
        await asyncio.sleep(0.01)
        seen = list(aborted)
        with pytest.raises(ApiError) as caught:
            await anext(session.events())
        assert caught.value.status == CLIENT_CLOSED
        return seen

    assert asyncio.run(scene()) == ["first", "second"]


def test_a_loop_that_stops_answers_those_who_wait() -> None:
    """Catches a client that is left without an answer, and a request left in the engine."""

    async def scene() -> FakeEngine:
        engine = FakeEngine(step_seconds=0.001, run=1)
        loop = EngineLoop(engine, Stats())
        loop.start()
        session = loop.open([make_llm(engine).prepare("only", "hello", Options(max_tokens=400))])
        events = session.events()
        await anext(events)
        loop.stop()
        with pytest.raises(ApiError, match="the server is shutting down"):
            async for _ in events:
                pass
        return engine

    assert asyncio.run(scene()).aborted == ["only"]


async def failing(delta: Delta) -> AsyncIterator[tuple[int, Delta]]:
    yield 1, delta
    raise ApiError(500, "the engine failed")


@pytest.mark.parametrize("read", [1, 9])
def test_a_stream_that_ends_early_aborts_its_requests(read: int) -> None:
    """Catches requests that outlive their stream, whether it fails or is closed."""

    async def scene() -> tuple[list[str], list[str]]:
        aborted: list[str] = []
        session = Session(generations(), aborted.append)
        delta = session.generations[1].take(Update("second", (64, 65)))
        body = stream.body(session, (1, delta), failing(delta), TextReply("m", TOKENIZER.piece), False)
        events = []
        async for event in body:
            events.append(event)
            if len(events) == read:
                break
        await body.aclose()
        return events, aborted

    events, aborted = asyncio.run(scene())
    assert aborted == ["first", "second"]
    assert len(events) == min(read, 3)
    assert stream.DONE not in events
