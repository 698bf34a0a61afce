"""One HTTP request as the engine's thread serves it: its generations, and the events that arrive for them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

from ft.fast.generation import Delta, Generation
from ft.fast.server.errors import CLIENT_CLOSED, ApiError

Event = Delta | ApiError


class Session:
    """Belongs to the event loop's thread; `arrivals` holds the index of a generation and its event."""

    def __init__(self, generations: Sequence[Generation], abort: Callable[[str], None]) -> None:
        self.generations = list(generations)
        self.arrivals: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._abort = abort
        self._watch: asyncio.Task[None] | None = None

    def watch(self, gone: Coroutine[None, None, None]) -> None:
        """Leave once `gone` returns, which says that the client has closed the connection."""

        async def leave() -> None:
            await gone
            self._end()
            error = ApiError(CLIENT_CLOSED, "the client closed the connection")
            self.arrivals.put_nowait((0, error))

        self._watch = asyncio.create_task(leave())

    async def events(self) -> AsyncIterator[tuple[int, Delta]]:
        """Index of a generation and its delta, until all have finished. ApiError when one fails."""
        unfinished = len(self.generations)
        while unfinished:
            index, event = await self.arrivals.get()
            if isinstance(event, ApiError):
                raise event
            unfinished -= event.finish is not None
            yield index, event

    def close(self) -> None:
        """Abort what has not finished, and watch the client no more."""
        self._end()
        if self._watch is not None:
            self._watch.cancel()

    def _end(self) -> None:
        for generation in self.generations:
            self._abort(generation.request.id)
