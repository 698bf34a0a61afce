"""Greedy and seeded text with speculation equals text without, token for token; cuts end it in the same place."""

import random
from collections.abc import Iterable
from dataclasses import replace

from ft.contracts.compare import assert_tokens
from ft.contracts.oracle import ReferenceBench
from ft.contracts.rig import Setting, poison_unheld_pages, run, tokens
from ft.fast.engine import Engine
from ft.fast.request import FinishReason, Request, Update
from ft.fast.spec.runner import SpecRunner
from ft.reference.types import Sampling, Verification

PROMPT_LENGTHS = (1, 2, 3, 10, 64, 65, 66, 130)
"""One token, shorter than the conv window, odd, and around the chunk of 64."""

SEEDED = (
    Sampling(temperature=0.7, seed=11),
    Sampling(temperature=1.0, top_k=20, seed=12),
    Sampling(temperature=1.5, top_p=0.8, min_p=0.02, seed=13),
    Sampling(temperature=1.0, top_k=9, top_p=0.9, seed=-14),
)


def prompts(vocabulary: int, lengths: Iterable[int] = PROMPT_LENGTHS, seed: int = 5) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(vocabulary) for _ in range(length)) for length in lengths]


def check_greedy(setting: Setting, vocabulary: int, max_tokens: int = 40) -> None:
    """Greedy text of eight requests that join and leave."""
    requests = [Request(str(i), p, max_tokens) for i, p in enumerate(prompts(vocabulary))]
    check_same_text(setting, requests)


def check_seeded(setting: Setting, vocabulary: int, max_tokens: int = 40) -> None:
    """Coupled sampling, another parameter set for each request, mixed with greedy ones."""
    mixed = [*SEEDED, Sampling()]
    requests = [
        Request(str(i), p, max_tokens, mixed[i % len(mixed)]) for i, p in enumerate(prompts(vocabulary))
    ]
    check_same_text(setting, requests)


def check_same_text(setting: Setting, requests: list[Request]) -> None:
    """Every request on its own without speculation, and all of them together with it, give the same updates."""
    plain = {}
    for request in requests:
        alone = run(setting.off().engine(), [request])
        plain[request.id] = alone[request.id]
    known = {request.prompt: tokens(plain[request.id]) for request in requests}
    engine = setting.engine(known)
    together = run(engine, requests)
    for request in requests:
        name = f"{setting.proposer} k={setting.drafts} request {request.id} of {len(request.prompt)} tokens"
        assert_tokens(name, tokens(plain[request.id]), tokens(together[request.id]))
        ends = [updates[request.id][-1].finish for updates in (plain, together)]
        assert ends[0] == ends[1], f"{name}: finish {ends[1]}, expected {ends[0]}"
    check_counts(setting, requests, together)
    check_idle(engine)


def check_counts(setting: Setting, requests: list[Request], together: dict[str, list[Update]]) -> None:
    """Drafts were really offered, accepted ones are within them, and a proposer that knows the text is believed."""
    updates = [update for request in requests for update in together[request.id]]
    offered = sum(update.drafted for update in updates)
    accepted = sum(update.accepted for update in updates)
    assert all(0 <= u.accepted <= u.drafted <= setting.drafts for u in updates)
    assert all(len(u.tokens) <= u.accepted + 1 for u in updates)
    assert (offered > 0) == (setting.drafts > 0), f"{offered} drafts were offered at k = {setting.drafts}"
    if setting.proposer == "oracle":
        # It knows nothing after a stop id, which only the last run of a request may hold.
        sure = [update for request in requests for update in together[request.id] if not update.finish]
        assert all(u.accepted == u.drafted for u in sure), f"oracle: {accepted} accepted of {offered}"
    if setting.proposer == "scripted":
        assert 0 < accepted < offered, f"scripted drafts: {accepted} accepted of {offered}"


def check_idle(engine: Engine) -> None:
    """Nothing is held when nothing runs."""
    cache, plan = engine.scheduler.cache, engine.plan
    assert cache.free + cache.cached == cache.capacity, f"{cache.free} free pages of {cache.capacity}"
    assert engine.scheduler.free_slots == plan.max_running_requests
    assert engine.idle


def check_stop_ids(setting: Setting, vocabulary: int) -> None:
    """A stop id ends the text wherever it falls in an accepted run, and wins over max_tokens at the same token."""
    prompt = prompts(vocabulary, (9,))[0]
    plain = tokens(run(setting.off().engine(), [Request("plain", prompt, 24)])["plain"])
    for place in range(1, 13):
        stop = plain[place]
        first = plain.index(stop)
        for limit in (24, first + 1):
            request = Request("cut", prompt, limit, stop_ids=(vocabulary - 1, stop))
            engine = setting.engine({prompt: plain})
            updates = run(engine, [request])["cut"]
            expected = plain[: min([first, *_places(plain, vocabulary - 1)]) + 1]
            assert_tokens(f"stop id at {first}, max_tokens {limit}", expected, tokens(updates))
            assert updates[-1].finish == FinishReason.STOP, f"finish {updates[-1].finish} at a stop id"
            check_frozen(engine, len(prompt) - 1 + len(expected))
            check_idle(engine)


def check_frozen(engine: Engine, committed: int) -> None:
    """The device stopped the only request, in slot 0, at its exact length, before the host had seen its end."""
    assert isinstance(engine.runtime, SpecRunner)
    table = engine.runtime.table
    assert not bool(table.active.any()), "a finished request is still on"
    assert int(table.committed[0]) == committed, f"{int(table.committed[0])} committed, expected {committed}"


def _places(values: list[int], value: int) -> list[int]:
    return [values.index(value)] if value in values else []


def check_limits(setting: Setting, vocabulary: int) -> None:
    """max_tokens 1..12 and the context limit cut a run to the exact length, and k shrinks before them."""
    prompt = prompts(vocabulary, (9,))[0]
    plain = tokens(run(setting.off().engine(), [Request("plain", prompt, 24)])["plain"])
    for limit in range(1, 13):
        engine = setting.engine({prompt: plain})
        updates = run(engine, [Request("cut", prompt, limit)])["cut"]
        assert_tokens(f"max_tokens {limit}", plain[:limit], tokens(updates))
        assert updates[-1].finish == FinishReason.LENGTH
        emitted = 0
        for update in updates:
            room = limit - emitted - 1
            assert update.drafted <= room, (
                f"{update.drafted} drafts with room for {room} before max_tokens {limit}"
            )
            emitted += len(update.tokens)
    for room in (1, 2, 5, 8):
        short = replace(setting, context=len(prompt) + room)
        updates = run(short.engine({prompt: plain}), [Request("cut", prompt, 24)])["cut"]
        assert_tokens(f"context with room for {room}", plain[:room], tokens(updates))
        assert updates[-1].finish == FinishReason.LENGTH


def check_abort(setting: Setting, vocabulary: int) -> None:
    """Aborts in mid-run leave the others' text and every page and slot as they should be."""
    listed = [Request(str(i), p, 40) for i, p in enumerate(prompts(vocabulary, (5, 70, 12, 3, 20, 8)))]
    plain = run(setting.off().engine(), listed)
    known = {request.prompt: tokens(plain[request.id]) for request in listed}
    engine = setting.engine(known)
    for request in listed:
        engine.add(request)
    seen: dict[str, list[int]] = {request.id: [] for request in listed}
    ends: dict[str, FinishReason | None] = {}
    for step in range(400):
        for name in {1: ["1"], 4: ["0", "5"]}.get(step, []):
            engine.abort(name)
        for update in engine.step():
            seen[update.request_id] += update.tokens
            ends[update.request_id] = update.finish
        if engine.idle:
            break
    for request in listed:
        if request.id in {"0", "1", "5"}:
            assert ends[request.id] == FinishReason.ABORT
            expected = tokens(plain[request.id])[: len(seen[request.id])]
            assert_tokens(f"aborted {request.id}", expected, seen[request.id])
        else:
            assert_tokens(f"neighbour {request.id}", tokens(plain[request.id]), seen[request.id])
    check_idle(engine)


def check_draft_limits(setting: Setting, vocabulary: int) -> None:
    """A request may turn its drafts off or shorten them; its neighbours keep theirs; no text changes."""
    listed = [
        Request(str(i), p, 30, drafts=limit)
        for i, (p, limit) in enumerate(zip(prompts(vocabulary, (5, 9, 12)), (0, 1, None), strict=True))
    ]
    plain = run(setting.off().engine(), listed)
    together = run(setting.engine({r.prompt: tokens(plain[r.id]) for r in listed}), listed)
    for request in listed:
        most = setting.drafts if request.drafts is None else min(request.drafts, setting.drafts)
        offered = [update.drafted for update in together[request.id]]
        assert max(offered) == most, f"request {request.id} was offered {max(offered)} drafts, limit {most}"
        assert_tokens(f"request {request.id}", tokens(plain[request.id]), tokens(together[request.id]))


REJECTION = Sampling(temperature=1.0, seed=3, verification=Verification.REJECTION)


def check_reference_text(setting: Setting, vocabulary: int) -> None:
    """The engine's tokens, finish and counts are those of the reference loop, in every kind of sampling."""
    kinds = (Sampling(), SEEDED[1], SEEDED[2], REJECTION)
    listed = [
        Request(str(i), p, 16, kinds[i % len(kinds)], stop_ids=(7,))
        for i, p in enumerate(prompts(vocabulary, (1, 2, 12, 66, 5, 9, 3, 65), seed=6))
    ]
    together = run(setting.engine(), listed)
    reference = ReferenceBench(setting)
    for request in listed:
        name = f"{request.sampling.mode().name}, prompt of {len(request.prompt)} tokens"
        wanted = reference.generate(request, setting.drafts, setting.context)
        updates = together[request.id]
        assert_tokens(name, list(wanted.tokens), tokens(updates))
        assert updates[-1].finish == wanted.finish, f"{name}: finish {updates[-1].finish}"
        steps = [(update.drafted, update.accepted, len(update.tokens)) for update in updates]
        assert steps == list(wanted.steps), f"{name}: steps {steps}, expected {list(wanted.steps)}"


def check_unheld_pages(setting: Setting, vocabulary: int) -> None:
    """What a page held before is never read, nor is the dummy page of the padding rows: NaN in all of them before
    every step, and so in every page that a request is given, changes no token."""
    lengths = (9, 5, 70, 66, 131, 2)
    listed = [Request(str(i), p, 26) for i, p in enumerate(prompts(vocabulary, lengths, seed=8))]
    plain = {request.id: tokens(run(setting.off().engine(), [request])[request.id]) for request in listed}
    known = {request.prompt: plain[request.id] for request in listed}
    for page_size in (4, 16, 64):
        engine = replace(setting, page_size=page_size).engine(known)
        guarded = _run_poisoned(engine, listed)
        for request in listed:
            name = f"request {request.id}, pages of {page_size}"
            assert_tokens(name, plain[request.id], tokens(guarded[request.id]))


def _run_poisoned(engine: Engine, listed: list[Request]) -> dict[str, list[Update]]:
    return run(engine, listed, before_step=lambda: poison_unheld_pages(engine))


def check_rejection_runs(setting: Setting, vocabulary: int) -> None:
    """Rejection sampling reaches its lengths, and the same fixed seed gives the same text twice."""
    sampling = REJECTION
    listed = [Request(str(i), p, 20, sampling) for i, p in enumerate(prompts(vocabulary, (5, 66, 9)))]
    known = {request.prompt: [0] * 20 for request in listed}
    first, second = (run(setting.engine(known), listed) for _ in range(2))
    for request in listed:
        assert len(tokens(first[request.id])) == 20
        assert_tokens(f"repeat of {request.id}", tokens(first[request.id]), tokens(second[request.id]))
