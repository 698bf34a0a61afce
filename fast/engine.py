"""The engine: admits requests, launches steps, and reads their results one step behind.

All device work is issued in order on one stream, so what the host frees is reused only after the steps that
still name it.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ft.fast.cut import FINISH_LENGTH, FINISH_STOP
from ft.fast.edit_table import check_edits
from ft.fast.logprobs import StepLogprobs
from ft.fast.masks import GrammarMasks
from ft.fast.plan import Plan
from ft.fast.request import FinishReason, Request, TokenLogprobs, Update
from ft.fast.scheduler import Chunk, Running, Scheduler
from ft.fast.spec.base import Batch, SamplingMix, SpecRuntime, StepOutput
from ft.fast.table import STOP_IDS
from ft.reference.types import Step

REASONS = {FINISH_STOP: FinishReason.STOP, FINISH_LENGTH: FinishReason.LENGTH}
MOST_TOKENS = 2**31 - 1
NO_TOKEN = (
    "the model's logits are not finite, or the request's limits allow no token; "
    "the checkpoint or the prompt drives it out of range, or bad_words and the grammar exclude each other"
)
NOT_IN_GRAMMAR = "a token was emitted that the grammar does not allow"


@dataclass(frozen=True)
class Flight:
    """A launched step: the requests of its rows, and its results on their way to the host."""

    records: list[Running]
    results: Tensor
    logprobs: StepLogprobs | None
    arrived: torch.cuda.Event | None


class Engine:
    """Implements request.EngineLike. Not thread-safe: one thread calls it."""

    def __init__(self, plan: Plan, runtime: SpecRuntime, scheduler: Scheduler) -> None:
        self.plan = plan
        self.runtime = runtime
        self.scheduler = scheduler
        self.device = torch.device(plan.device)
        self._flight: Flight | None = None
        self._aborted: list[Update] = []

    @property
    def idle(self) -> bool:
        scheduler = self.scheduler
        return not (scheduler.waiting or scheduler.running or self._flight or self._aborted)

    def add(self, request: Request) -> None:
        """Queue a request. ValueError names what can never run."""
        check(request, self.plan, self.runtime.vocabulary)
        needed = -(-self.scheduler.reservation(request) // self.plan.page_size)
        if needed > self.plan.pages:
            raise ValueError(
                f"prompt of {len(request.prompt)} tokens and max_tokens {request.max_tokens} need {needed} pages "
                f"of {self.plan.page_size} tokens; the pool has {self.plan.pages}: ask for fewer tokens or raise "
                "--num-tokens"
            )
        if request.id in self.scheduler.running or any(r.id == request.id for r in self.scheduler.waiting):
            raise ValueError(f"request id {request.id!r} is already in use")
        self.scheduler.waiting.append(request)

    def abort(self, request_id: str) -> None:
        scheduler = self.scheduler
        record = scheduler.running.get(request_id)
        if record is not None:
            self.runtime.release(record.lease.slot)
            scheduler.finish(record)
        elif any(request.id == request_id for request in scheduler.waiting):
            kept = [request for request in scheduler.waiting if request.id != request_id]
            scheduler.waiting.clear()
            scheduler.waiting.extend(kept)
        else:
            return
        self._aborted.append(Update(request_id, (), finish=FinishReason.ABORT))

    @torch.inference_mode()
    def step(self) -> list[Update]:
        for record in self.scheduler.admit():
            self._admit(record)
        for chunk in self.scheduler.chunks():
            self._prefill(chunk)
        updates, self._aborted = self._aborted, []
        if any(record.request.grammar is not None for record in self.scheduler.decoding()):
            # Masks of the next step follow from the tokens of this one.
            updates += self._land_flight()
        previous, self._flight = self._flight, self._launch()
        return updates + (self._land(previous) if previous else [])

    def _land_flight(self) -> list[Update]:
        previous, self._flight = self._flight, None
        return self._land(previous) if previous else []

    def _admit(self, record: Running) -> None:
        request = record.request
        seed = request.sampling.seed
        limit = self.plan.drafts if request.drafts is None else min(request.drafts, self.plan.drafts)
        seed = secrets.randbits(63) if seed is None else seed
        self.runtime.admit(record.lease.slot, request, seed, limit)
        self._activate_if_ready(record)

    def _activate_if_ready(self, record: Running) -> None:
        if record.decoding:
            self.runtime.activate(record.lease.slot, record.prompt_rows, record.request.prompt[-1])

    def _prefill(self, chunk: Chunk) -> None:
        record = chunk.running
        prompt, slot = record.request.prompt, record.lease.slot
        step, next_ids = prompt_step(
            prompt, chunk.start, chunk.end, self.plan.prefill_grid, slot, self.device
        )
        self.runtime.prefill(step, next_ids)
        record.prefilled = chunk.end
        self._activate_if_ready(record)

    def _launch(self) -> Flight | None:
        records = self.scheduler.decoding()
        if not records:
            return None
        padded = next(size for size in self.plan.batch_sizes if size >= len(records))
        sink = self.plan.max_running_requests
        slots = torch.full((padded,), sink, dtype=torch.int64)
        slots[: len(records)] = torch.tensor([record.lease.slot for record in records])
        run = self.plan.drafts + 1
        bound = max(
            record.prompt_rows + record.generated + (record.in_flight + 1) * run for record in records
        )
        batch = Batch(
            slots.to(self.device),
            min(bound, self.plan.context),
            SamplingMix.of(record.request for record in records),
            self._masks(records, padded),
        )
        output = self.runtime.decode(batch)
        for record in records:
            record.in_flight += 1
        return _take_off(records, output)

    def _masks(self, records: list[Running], padded: int) -> GrammarMasks | None:
        grammars = [record.request.grammar for record in records]
        if all(grammar is None for grammar in grammars):
            return None
        return GrammarMasks(grammars, padded, self.runtime.vocabulary, self.device)

    def _land(self, flight: Flight) -> list[Update]:
        if flight.arrived is not None:
            flight.arrived.synchronize()
        updates = []
        for index, (record, row) in enumerate(zip(flight.records, flight.results.tolist(), strict=False)):
            cut, drafted, accepted, finish, failed = row[:5]
            record.in_flight -= 1
            if record.finished or not cut:
                continue
            tokens = tuple(row[5 : 5 + cut])
            record.tokens.extend(tokens)
            record.generated += cut
            reason, error = REASONS.get(finish), None
            if failed:
                reason, error, tokens = FinishReason.ERROR, NO_TOKEN, ()
            grammar = record.request.grammar
            if grammar is not None and not grammar.accept(tokens):
                reason, error, tokens = FinishReason.ERROR, NOT_IN_GRAMMAR, ()
                self.runtime.release(record.lease.slot)
            updates.append(
                Update(
                    record.request.id,
                    tokens,
                    drafted,
                    accepted,
                    reason,
                    error,
                    record.lease.cached_tokens,
                    reports(record.request, tokens, flight.logprobs, index),
                )
            )
            if reason is not None:
                self.scheduler.finish(record)
        return updates


def prompt_step(
    prompt: Sequence[int], start: int, end: int, grid: int, slot: int, device: torch.device
) -> tuple[Step, Tensor]:
    """Rows [start, end) of a prompt as one step of `grid` rows, and the token after each row, int64 [1, grid]."""
    rows = end - start
    ids = torch.zeros(2, grid, dtype=torch.int64)
    ids[0, :rows] = torch.tensor(prompt[start:end])
    ids[1, :rows] = torch.tensor(prompt[start + 1 : end + 1])
    ids = ids.to(device)
    positions = torch.arange(start, start + grid, device=device)[None]
    step = Step(
        token_ids=ids[:1],
        positions=positions,
        rope_positions=positions.expand(3, -1, -1),
        valid=torch.full((1,), rows, device=device),
        slots=torch.full((1,), slot, device=device),
        prefill=True,
        bound=end,
    )
    return step, ids[1:]


def _take_off(records: list[Running], output: StepOutput) -> Flight:
    """Start the copy of a step's results: one int64 [B, 5 + k + 1] tensor."""
    counters = [output.cut, output.drafted, output.accepted, output.finish, output.failed.long()]
    packed = torch.cat([torch.stack(counters, dim=1), output.emitted], dim=1)
    logprobs = output.logprobs
    if not packed.is_cuda:
        return Flight(records, packed, logprobs, None)
    host = _to_host(packed)
    if logprobs is not None:
        logprobs = StepLogprobs(_to_host(logprobs.chosen), _to_host(logprobs.ids), _to_host(logprobs.values))
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(packed.device))
    return Flight(records, host, logprobs, arrived)


def _to_host(values: Tensor) -> Tensor:
    """A copy on its way to pinned memory."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    return host


def reports(
    request: Request, tokens: Sequence[int], logprobs: StepLogprobs | None, index: int
) -> tuple[TokenLogprobs, ...]:
    """What the request wants to know of its emitted tokens; it stands at `index` of the step."""
    if request.logprobs is None or logprobs is None or not tokens:
        return ()
    chosen, ids, values = (
        part[index, : len(tokens)].tolist() for part in (logprobs.chosen, logprobs.ids, logprobs.values)
    )
    count = request.logprobs
    return tuple(
        TokenLogprobs(token, own, tuple(zip(ids[place][:count], values[place][:count], strict=True)))
        for place, (token, own) in enumerate(zip(tokens, chosen, strict=True))
    )


def check(request: Request, plan: Plan, vocabulary: int) -> None:
    """ValueError when a request breaks a limit; the message names the value and the limit."""
    length = len(request.prompt)
    if length < 1:
        raise ValueError("the prompt is empty; it needs at least one token")
    if length >= plan.context:
        raise ValueError(
            f"prompt of {length} tokens; the context is {plan.context}, one token must fit after it"
        )
    wrong = next((token for token in request.prompt if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise ValueError(f"token id {wrong} in the prompt; ids are 0..{vocabulary - 1}")
    if request.max_tokens < 1:
        raise ValueError(f"max_tokens is {request.max_tokens}; it must be at least 1")
    for name, count in (
        ("max_tokens", request.max_tokens),
        ("min_tokens", request.sampling.edits.min_tokens),
    ):
        if count > MOST_TOKENS:
            raise ValueError(f"{name} is {count}; the engine counts to {MOST_TOKENS}")
    if len(request.stop_ids) > STOP_IDS:
        raise ValueError(f"{len(request.stop_ids)} stop ids; at most {STOP_IDS} are matched on the device")
    check_edits(request.sampling.edits, vocabulary)
    if request.drafts is not None and request.drafts < 0:
        raise ValueError(f"drafts is {request.drafts}; it must be 0 or more")
