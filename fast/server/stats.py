"""Counters of one server, in a registry of its own, in the text formats that Prometheus scrapes.

Tokens are those of `usage` in the answers: what stands in the output, stop ids included. Accepted drafts are
counted twice, as the verify judged them and as they stand in the output, since a cut may drop some.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from ft.fast.generation import Generation, accepted_in_output
from ft.fast.request import FinishReason, Update

STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
FIRST_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
EMITTED = tuple(range(1, 18))


class Stats:
    """Written by the engine's thread, read by any."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("requests", "Finished requests by how they ended.", ["finish"])
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of requests that emitted a token.")
        self._cached = self._counter("cached_prompt_tokens", "Prompt tokens found in the prefix cache.")
        self._generated = self._counter("generation_tokens", "Tokens in outputs, stop ids included.")
        self._steps = self._counter("engine_steps", "Engine steps that emitted a token.")
        self._errors = self._counter("engine_errors", "Exceptions of the engine.")
        self._drafts = self._counter("draft_tokens", "Drafts offered to a verify.")
        self._accepted = self._counter("accepted_draft_tokens", "Drafts that a verify accepted.")
        self._standing = self._counter("output_draft_tokens", "Accepted drafts that stand in an output.")
        place = ["position"]
        self._drafts_at = self._counter("draft_tokens_by_position", "Drafts offered, first is 0.", place)
        self._accepted_at = self._counter("accepted_draft_tokens_by_position", "Drafts accepted.", place)
        self._emitted = self._histogram("emitted_tokens_per_step", "Tokens of one request's step.", EMITTED)
        self._seconds = self._histogram("engine_step_seconds", "Time of an emitting step.", STEP_SECONDS)
        self._first = self._histogram("time_to_first_token_seconds", "From arrival.", FIRST_TOKEN_SECONDS)
        self._running = self._gauge("running_requests", "Requests that have emitted a token.")
        self._waiting = self._gauge("waiting_requests", "Requests queued or in prefill.")

    def step(self, seconds: float) -> None:
        """An engine step that emitted something."""
        self._steps.inc()
        self._seconds.observe(seconds)

    def first(self, generation: Generation, seconds: float) -> None:
        """A request emitted its first token, `seconds` after it arrived."""
        self._prompt.inc(len(generation.request.prompt))
        self._cached.inc(generation.updates[0].cached_tokens)
        self._first.observe(seconds)

    def emitted(self, update: Update) -> None:
        """A step of one request, cut to the request's output."""
        if not update.tokens:
            return
        self._generated.inc(len(update.tokens))
        self._emitted.observe(len(update.tokens))
        self._drafts.inc(update.drafted)
        self._accepted.inc(update.accepted)
        self._standing.inc(accepted_in_output(update))
        for position in range(update.drafted):
            self._drafts_at.labels(position).inc()
        for position in range(update.accepted):
            self._accepted_at.labels(position).inc()

    def finished(self, reason: FinishReason) -> None:
        self._requests.labels(reason.value).inc()

    def failed(self) -> None:
        self._errors.inc()

    def requests(self, running: int, waiting: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The metrics and their content type, in the format that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"ft_{name}", text, labels or (), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"ft_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"ft_{name}", text, buckets=buckets, registry=self.registry)
