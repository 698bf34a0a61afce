"""The engine and scheduler over a runtime without a model: order, limits, conservation, one step behind."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ft.fast.caches.naive import NaiveCache
from ft.fast.cut import FINISH_LENGTH
from ft.fast.engine import Engine
from ft.fast.plan import Plan
from ft.fast.pools.paged import PageTable
from ft.fast.request import FinishReason, Request, Update
from ft.fast.scheduler import Scheduler
from ft.fast.spec.base import Batch, StepOutput
from ft.fast.table import RequestTable
from ft.reference.types import Edits, Sampling, Step

PLAN = Plan(
    model=Path("none"),
    family="none",
    algorithm="mtp",
    drafts=3,
    draft_model=None,
    device="cpu",
    dtype="float32",
    backend="torch",
    cache="naive",
    page_size=4,
    pages=64,
    context=128,
    max_running_requests=3,
    max_prefill_length=64,
    prefill_grid=8,
    batch_sizes=(1, 2, 3),
)


class CountingRuntime:
    """Emits runs of `run` tokens that count up from the prompt's length; records what it was asked."""

    vocabulary = 1000

    def __init__(self, slots: int, run: int = 2) -> None:
        self.table = RequestTable(slots, 512, self.vocabulary, torch.device("cpu"))
        self.run = run
        self.chunks: list[tuple[int, int, int]] = []
        self.batches: list[list[int]] = []

    def admit(self, slot: int, request: Request, seed: int, drafts: int) -> None:
        self.table.admit(slot, request, seed, drafts)

    def activate(self, slot: int, committed: int, pending: int) -> None:
        self.table.activate(slot, committed, pending)

    def release(self, slot: int) -> None:
        self.table.deactivate(slot)

    def prefill(self, step: Step, next_ids: Tensor) -> None:
        start = int(step.positions[0, 0])
        self.chunks.append((int(step.slots[0]), start, start + int(step.valid[0])))

    def decode(self, batch: Batch) -> StepOutput:
        self.batches.append(batch.slots.tolist())
        rows = self.table.rows(batch.slots)
        room = rows.max_tokens - rows.generated
        kept = torch.where(rows.active, room.clamp(max=self.run), 0)
        emitted = rows.committed[:, None] + 1 + torch.arange(4)
        done = rows.active & (kept == room)
        self.table.advance(batch.slots, rows, kept, emitted, done)
        finish = torch.where(done, FINISH_LENGTH, 0)
        return StepOutput(emitted, kept, kept * 0 + 3, kept - 1, finish, torch.zeros_like(done))


def engine_of(plan: Plan = PLAN, run: int = 2) -> tuple[Engine, CountingRuntime]:
    pages = PageTable(
        plan.max_running_requests, plan.context, plan.page_size, plan.pages, torch.device("cpu")
    )
    scheduler = Scheduler(
        NaiveCache(pages), plan.max_running_requests, plan.prefill_grid, plan.max_prefill_length, plan.context
    )
    runtime = CountingRuntime(plan.max_running_requests, run)
    return Engine(plan, runtime, scheduler), runtime


def drain(engine: Engine, limit: int = 500) -> list[Update]:
    updates: list[Update] = []
    for _ in range(limit):
        if engine.idle:
            return updates
        updates += engine.step()
    raise AssertionError(f"the engine is not idle after {limit} steps")


def text_of(updates: Sequence[Update], name: str) -> list[int]:
    return [token for update in updates if update.request_id == name for token in update.tokens]


def test_many_requests_through_few_slots_all_finish_and_everything_comes_back() -> None:
    engine, _ = engine_of()
    for index in range(10):
        engine.add(Request(str(index), tuple(range(1, 2 + 3 * index)), max_tokens=5))
    updates = drain(engine)
    for index in range(10):
        length = 1 + 3 * index
        assert text_of(updates, str(index)) == list(range(length, length + 5))
    assert [u.finish for u in updates if u.finish] == [FinishReason.LENGTH] * 10
    assert engine.scheduler.free_slots == PLAN.max_running_requests
    assert engine.scheduler.cache.free == PLAN.pages == engine.scheduler.cache.capacity


def test_results_are_read_one_step_behind() -> None:
    engine, runtime = engine_of()
    engine.add(Request("a", (1, 2), max_tokens=6))
    assert engine.step() == [] and len(runtime.batches) == 1
    assert [u.tokens for u in engine.step()] == [(2, 3)] and len(runtime.batches) == 2


def test_no_step_is_launched_that_cannot_emit() -> None:
    engine, runtime = engine_of(run=1)
    engine.add(Request("a", (1, 2), max_tokens=4))
    drain(engine)
    assert len(runtime.batches) == 4


def test_prompts_are_cut_on_the_absolute_grid_and_leave_their_last_token_pending() -> None:
    engine, runtime = engine_of()
    engine.add(Request("a", tuple(range(20)), max_tokens=1))
    drain(engine)
    assert runtime.chunks == [(0, 0, 8), (0, 8, 16), (0, 16, 19)]


def test_prefill_takes_at_most_its_budget_of_tokens_a_step() -> None:
    engine, runtime = engine_of(replace(PLAN, max_prefill_length=16))
    engine.add(Request("a", tuple(range(40)), max_tokens=1))
    engine.step()
    assert runtime.chunks == [(0, 0, 8), (0, 8, 16)]


def test_a_request_waits_for_pages_and_then_runs() -> None:
    engine, _ = engine_of(replace(PLAN, pages=5))
    engine.add(Request("big", tuple(range(12)), max_tokens=4))
    engine.add(Request("next", (1, 2, 3), max_tokens=5))
    engine.step()
    assert len(engine.scheduler.waiting) == 1
    assert text_of(drain(engine), "next") == [3, 4, 5, 6, 7]


def test_abort_of_a_waiting_a_running_and_an_unknown_request() -> None:
    engine, _ = engine_of(replace(PLAN, max_running_requests=1, batch_sizes=(1,)))
    for name in ("running", "waiting", "other"):
        engine.add(Request(name, (1, 2, 3), max_tokens=50))
    engine.step()
    engine.abort("waiting")
    engine.abort("running")
    engine.abort("nobody")
    updates = drain(engine)
    ended = {u.request_id: u.finish for u in updates if u.finish}
    assert ended == {
        "running": FinishReason.ABORT,
        "waiting": FinishReason.ABORT,
        "other": FinishReason.LENGTH,
    }
    assert text_of(updates, "running") == [], "results of a step in flight reached an aborted request"
    assert engine.scheduler.cache.free == PLAN.pages and engine.scheduler.free_slots == 1


def test_a_slot_is_used_again_while_its_last_step_is_in_flight() -> None:
    engine, _ = engine_of(replace(PLAN, max_running_requests=1, batch_sizes=(1,)))
    engine.add(Request("first", (1, 2, 3), max_tokens=50))
    engine.step()
    engine.abort("first")
    engine.add(Request("second", (1, 2, 3, 4, 5), max_tokens=3))
    assert text_of(drain(engine), "second") == [5, 6, 7]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("a", (), 1), ["empty"]),
        (Request("a", tuple(range(128)), 1), ["128", "context"]),
        (Request("a", (5, 1000), 1), ["1000", "999"]),
        (Request("a", (-1,), 1), ["-1"]),
        (Request("a", (1,), 0), ["max_tokens", "0"]),
        (Request("a", (1,), 1, stop_ids=tuple(range(17))), ["17", "16"]),
        (Request("a", (1,), 1, drafts=-1), ["drafts", "-1"]),
        (Request("a", (1,), 10**30), ["max_tokens", str(10**30), str(2**31 - 1)]),
        (Request("a", (1,), 9, Sampling(edits=Edits(min_tokens=2**31))), ["min_tokens", str(2**31)]),
    ],
)
def test_a_request_that_breaks_a_limit_is_refused_with_value_and_limit(
    request_: Request, words: list[str]
) -> None:
    engine, _ = engine_of()
    with pytest.raises(ValueError) as caught:
        engine.add(request_)
    assert all(word in str(caught.value) for word in words)
    assert engine.idle


def test_a_request_larger_than_the_pool_is_refused_and_ids_are_unique() -> None:
    engine, _ = engine_of(replace(PLAN, pages=8))
    with pytest.raises(ValueError, match="--num-tokens"):
        engine.add(Request("a", (1, 2), max_tokens=100))
    engine.add(Request("a", (1, 2), max_tokens=4))
    with pytest.raises(ValueError, match="'a'"):
        engine.add(Request("a", (1, 2), max_tokens=4))
