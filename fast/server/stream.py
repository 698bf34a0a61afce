"""Server-sent events: one `data:` line an event, an empty line after it, [DONE] at the end of a good stream."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from ft.fast.generation import Delta
from ft.fast.server.errors import ApiError
from ft.fast.server.replies import Reply
from ft.fast.server.session import Session

DONE = "data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


async def body(
    session: Session,
    first: tuple[int, Delta],
    rest: AsyncIterator[tuple[int, Delta]],
    reply: Reply,
    include_usage: bool,
) -> AsyncGenerator[str]:
    """The events of one answer. An error after the first delta is an event too, and no [DONE] follows it."""
    null_usage = {"usage": None} if include_usage else {}
    try:
        for index in range(len(session.generations)):
            for chunk in reply.opening(index):
                yield event(chunk | null_usage)
        for chunk in chunks(reply, *first):
            yield event(chunk | null_usage)
        async for arrived in rest:
            for chunk in chunks(reply, *arrived):
                yield event(chunk | null_usage)
        if include_usage:
            yield event(reply.closing([generation.completion() for generation in session.generations]))
        yield DONE
    except ApiError as error:
        yield event(error.body())
    finally:
        session.close()


def chunks(reply: Reply, index: int, delta: Delta) -> list[dict[str, Any]]:
    """The chunks of one delta: its text and log probabilities where there are any, and the end in a chunk of its own."""
    logprobs = delta.update.logprobs
    found = [reply.chunk(index, delta.text, None, logprobs)] if delta.text or logprobs else []
    if delta.finish is not None:
        found.append(reply.chunk(index, "", delta.finish))
    return found
