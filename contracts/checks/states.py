"""After commit(m) every per-request state is that of a fresh run over the committed tokens, for every m, round
after round; neighbours keep their bits; rejected rows, poisoned, are never read; a slot used again starts empty."""

import itertools

import torch

from ft.contracts.bench import FastBench, Rows, verdict_of
from ft.contracts.checks.target import commit_rows, compare_states
from ft.contracts.checks.texts import prompts
from ft.contracts.compare import assert_equal
from ft.contracts.oracle import ReferenceBench
from ft.contracts.rig import Setting


def check_every_accept_count(setting: Setting, vocabulary: int) -> None:
    """Three rounds of k drafts with every accept count in some round, 0 and k back to back among them."""
    drafts = setting.drafts
    counts = [*range(drafts + 1), 0, drafts, drafts, 0]
    prompt = prompts(vocabulary, (63,), seed=31)[0]
    words = itertools.cycle(prompts(vocabulary, (97,), seed=32)[0])
    for first in range(0, len(counts), 4):
        bench = FastBench(setting)
        bench.start(0, prompt)
        sequence, pending = list(prompt[:-1]), prompt[-1]
        for accepted in (counts * 2)[first : first + 4]:
            ids = (pending, *itertools.islice(words, drafts))
            bonus = next(words)
            commit_rows(bench, Rows((0,), (len(sequence),), (ids,)), [accepted + 1], [bonus])
            sequence += ids[: accepted + 1]
            pending = bonus
            fresh = ReferenceBench(setting)
            fresh.start(0, (*sequence, pending))
            name = f"{accepted} of {drafts} accepted, {len(sequence)} committed"
            compare_states(name, fresh.state(0, len(sequence)), bench.state(0, len(sequence)), setting)


def check_neighbours(setting: Setting, vocabulary: int) -> None:
    """Three requests, different accept counts, one padding row, order shuffled; a fourth slot stands by."""
    listed = prompts(vocabulary, (5, 70, 12, 33), seed=33)
    bench = FastBench(setting)
    for slot, prompt in enumerate(listed):
        bench.start(slot, prompt)
    watched = bench.state(3, len(listed[3]) - 1)
    sink = setting.requests
    sequences = {slot: list(prompt[:-1]) for slot, prompt in enumerate(listed)}
    pending = {slot: prompt[-1] for slot, prompt in enumerate(listed)}
    words = itertools.cycle(prompts(vocabulary, (89,), seed=34)[0])
    for order, kept in (((2, 0, 1), (1, 4, 2)), ((1, 2, 0), (4, 1, 3)), ((0, 1, 2), (2, 0, 4))):
        ids = [(pending[slot], *itertools.islice(words, 3)) for slot in order]
        bonus = list(itertools.islice(words, 3))
        rows = Rows((*order, sink), (*[len(sequences[s]) for s in order], 0), (*ids, ()))
        commit_rows(bench, rows, [*kept, 0], [*bonus, 0])
        for index, slot in enumerate(order):
            sequences[slot] += ids[index][: kept[index]]
            pending[slot] = bonus[index] if kept[index] else pending[slot]
    for slot in (0, 1, 2):
        fresh = ReferenceBench(setting)
        fresh.start(0, (*sequences[slot], pending[slot]))
        committed = len(sequences[slot])
        compare_states(f"slot {slot}", fresh.state(0, committed), bench.state(slot, committed), setting)
    for name, value in bench.state(3, len(listed[3]) - 1).items():
        assert_equal(f"{name} of the slot that stood by", watched[name], value)


def check_poisoned_rows(setting: Setting, vocabulary: int) -> None:
    """NaN in every key and value beyond the committed length changes no bit of the next verify or its states."""
    prompt, run = prompts(vocabulary, (21, 12), seed=35)
    clean, poisoned = FastBench(setting), FastBench(setting)
    states = []
    for bench in (clean, poisoned):
        bench.start(0, prompt)
        first = (prompt[-1], *run[:3])
        commit_rows(bench, Rows((0,), (20,), (first,)), [2], [run[4]])
        if bench is poisoned:
            _poison(bench, committed=22)
        rows = Rows((0,), (22,), ((run[4], *run[5:8]),))
        step = bench.step(rows)
        features, logits = bench.forward(step)
        bench.keep(step, features, verdict_of(rows, [3], [run[9]], step.rows, setting.device))
        states.append((logits, bench.state(0, 25)))
    assert_equal("logits", states[0][0], states[1][0])
    for name, value in states[0][1].items():
        assert_equal(name, value, states[1][1][name])


def _poison(bench: FastBench, committed: int) -> None:
    """NaN into every token slot that does not hold a committed position of slot 0, free pages included."""
    for pool in bench.key_values():
        device = bench.device
        positions = torch.arange(committed, device=device)[None]
        slots = torch.zeros(1, dtype=torch.int64, device=device)
        held = pool.table.write_slots(slots, positions, torch.tensor([committed], device=device))[0]
        loose = torch.ones(pool.keys.shape[1], dtype=torch.bool, device=device)
        loose[held] = False
        pool.keys[:, loose] = float("nan")
        pool.values[:, loose] = float("nan")


def check_slot_reuse(setting: Setting, vocabulary: int) -> None:
    """A slot that held another request gives bitwise the states of a fresh engine."""
    long, short = prompts(vocabulary, (90, 6), seed=36)
    used, fresh = FastBench(setting), FastBench(setting)
    used.start(0, long)
    used.release(0)
    cache = used.engine.scheduler.cache
    assert cache.free == cache.capacity, f"{cache.free} of {cache.capacity} pages came back"
    for bench in (used, fresh):
        bench.start(0, short)
    expected = fresh.state(0, 5)
    for name, value in used.state(0, 5).items():
        assert_equal(name, expected[name], value)
