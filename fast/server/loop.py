"""The engine's own thread: takes submissions and aborts from a queue, steps, and hands deltas to their sessions.

Only this thread touches the engine and the generations that run; sessions live on the event loop's thread.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from ft.fast.generation import Generation
from ft.fast.request import EngineLike, FinishReason, Request, Update
from ft.fast.server.errors import ApiError
from ft.fast.server.session import Event, Session
from ft.fast.server.stats import Stats

T = TypeVar("T")
log = logging.getLogger("ft.server")
GOOD_ENDS = (None, FinishReason.STOP, FinishReason.LENGTH)


@dataclass
class Entry:
    """A generation in the engine. emitting: its first token has come."""

    session: Session
    index: int
    generation: Generation
    arrived: float
    emitting: bool = False

    @property
    def id(self) -> str:
        return self.generation.request.id


Command = Entry | str | None
"""A submission, the id of a request to abort, or the end of the thread."""


class EngineLoop:
    """failure: the engine's last exception, None once a later step has emitted tokens. dead: the engine fails
    even with no request in it, so every request is refused."""

    def __init__(self, engine: EngineLike, stats: Stats) -> None:
        self.failure: str | None = None
        self.dead = False
        self._engine = engine
        self._stats = stats
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._entries: dict[str, Entry] = {}
        self._outbox: list[tuple[Session, int, Event]] = []
        self._running = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ft-engine", daemon=True)
        self._clients: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start the thread. Sessions live on the event loop that calls this."""
        self._clients = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Fail what still runs, refuse what comes, and wait for the thread."""
        self._closed = True
        self._commands.put(None)
        self._thread.join()

    @property
    def busy(self) -> bool:
        """Whether some request has not had its end."""
        return bool(self._entries) or not self._commands.empty()

    def open(self, generations: Sequence[Generation]) -> Session:
        """Submit the generations of one HTTP request. ApiError 503 once the server shuts down."""
        if self._closed:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down")
        session = Session(generations, self._commands.put)
        now = time.perf_counter()
        for index, generation in enumerate(generations):
            self._commands.put(Entry(session, index, generation, now))
        return session

    def _run(self) -> None:
        while self._running:
            fault = self._attempt(self._turn)
            if fault is not None:
                self.dead = True
                self._fail_all(fault)
            self._deliver()
        self._fail_all(ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down"))
        self._deliver()

    def _turn(self) -> None:
        self._take_commands()
        if self._running and self._has_work():
            self._step()
        emitting = sum(entry.emitting for entry in self._entries.values())
        self._stats.requests(emitting, len(self._entries) - emitting)

    def _has_work(self) -> bool:
        return not self.dead and not self._engine.idle

    def _take_commands(self) -> None:
        """Obey every command that waits; wait for one when there is nothing else to do."""
        block = not self._has_work()
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return
            block = False
            match command:
                case None:
                    self._running = False
                case Entry():
                    self._submit(command)
                case str():
                    self._withdraw(command)

    def _submit(self, entry: Entry) -> None:
        refused = self._attempt(lambda: self._add(entry.generation.request))
        if refused is None:
            self._entries[entry.id] = entry
        else:
            self._send(entry, refused)

    def _add(self, request: Request) -> ApiError | None:
        if self.dead:
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, f"the engine failed: {self.failure}")
        try:
            self._engine.add(request)
        except ValueError as error:
            return ApiError(HTTPStatus.BAD_REQUEST, str(error))
        return None

    def _withdraw(self, request_id: str) -> None:
        """The client left. Requests that have ended are not in the table any more."""
        if self._entries.pop(request_id, None):
            self._stats.finished(FinishReason.ABORT)
            self._abort(request_id)

    def _step(self) -> None:
        started = time.perf_counter()
        updates = self._attempt(self._engine.step)
        if isinstance(updates, ApiError):
            self.dead = not self._entries
            self._fail_all(updates)
            return
        known = [update for update in updates if update.request_id in self._entries]
        if any(update.tokens for update in known):
            self._stats.step(time.perf_counter() - started)
            self.failure = None
        for update in known:
            entry = self._entries.get(update.request_id)
            if entry is not None:
                self._update(entry, update)

    def _update(self, entry: Entry, update: Update) -> None:
        """Account for one update, and end the request where it ends."""
        if update.finish not in GOOD_ENDS:
            reason = update.error or f"the engine ended the request: {update.finish}"
            self._end(entry, FinishReason.ERROR)
            self._send(entry, ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, reason))
            return
        delta = self._attempt(lambda: entry.generation.take(update))
        if isinstance(delta, ApiError):
            self._end(entry, FinishReason.ERROR)
            self._send(entry, delta)
            self._abort(entry.id)
            return
        self._stats.emitted(delta.update)
        if delta.update.tokens and not entry.emitting:
            entry.emitting = True
            self._stats.first(entry.generation, time.perf_counter() - entry.arrived)
        if delta.finish is not None:
            self._end(entry, delta.finish)
            if update.finish is None:
                self._abort(entry.id)
        self._send(entry, delta)

    def _end(self, entry: Entry, reason: FinishReason) -> None:
        del self._entries[entry.id]
        self._stats.finished(reason)

    def _abort(self, request_id: str) -> None:
        fault = self._attempt(lambda: self._engine.abort(request_id))
        if fault is not None:
            self.dead = True
            self._fail_all(fault)

    def _fail_all(self, error: ApiError) -> None:
        """No request survives a fault of the engine: its state between two steps is not known."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            self._stats.finished(FinishReason.ERROR)
            self._send(entry, error)
            if not self.dead:
                self._abort(entry.id)

    def _attempt(self, action: Callable[[], T]) -> T | ApiError:
        """The action's result; or, when it raises, the error for clients, with the exception kept and logged."""
        try:
            return action()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            self._stats.failed()
            log.exception("the engine failed")
            return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, f"the engine failed: {self.failure}")

    def _send(self, entry: Entry, event: Event) -> None:
        self._outbox.append((entry.session, entry.index, event))

    def _deliver(self) -> None:
        """Hand all events of a step over at once."""
        outbox, self._outbox = self._outbox, []
        if not outbox or self._clients is None:
            return
        try:
            self._clients.call_soon_threadsafe(_hand_out, outbox)
        except RuntimeError:
            log.warning("%d events have no one to go to: the event loop is closed", len(outbox))


def _hand_out(outbox: list[tuple[Session, int, Event]]) -> None:
    for session, index, event in outbox:
        session.arrivals.put_nowait((index, event))
