"""Rollback: after every commit each state is that of a fresh run over exactly the committed tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ft.reference.families.qwen3_5.target import ReferenceTarget
from ft.reference.state import RunningState, require_handlers

from .rig import Model, error, load, run, state_error, step_of_requests, tokens

EXACT = 1e-10
BROKEN = 1e-3
PROMPTS = (70, 2, 5)
"""Beyond a 64-token chunk, and shorter than the conv's taps."""


@pytest.fixture(scope="module")
def model(tiny: dict[str, Path]) -> Model:
    return load(tiny["dense"])


def fresh(model: Model, ids: Sequence[int]) -> ReferenceTarget:
    """A target that read `ids` in one chunk, in slot 0."""
    target = model.target()
    run(target, step_of_requests([ids], [0], [0]))
    return target


@dataclass
class Worst:
    """Largest differences from fresh runs."""

    state: float = 0.0
    logits: float = 0.0


def rounds(model: Model, drafts: int, accepts: Sequence[int]) -> Worst:
    """Three requests; in round i request j accepts accepts[i + j] of its drafts. Slots are not in order."""
    slots, worst, target = (4, 0, 2), Worst(), model.target()
    texts = [tokens(count, model.config.vocabulary, seed=count) for count in PROMPTS]
    run(target, step_of_requests(texts, [0, 0, 0], slots))
    words = iter(tokens(4000, model.config.vocabulary, seed=9))
    for turn in range(len(accepts)):
        rows = [[next(words) for _ in range(drafts + 1)] for _ in slots]
        kept = [accepts[(turn + index) % len(accepts)] + 1 for index in range(len(slots))]
        step = step_of_requests(rows, [len(text) for text in texts], slots)
        logits = target.logits(run(target, step, kept).final_hidden)
        for index, slot in enumerate(slots):
            whole = model.target()
            ids = [*texts[index], *rows[index]]
            expected = whole.logits(run(whole, step_of_requests([ids], [0], [0])).final_hidden)[0]
            worst.logits = max(worst.logits, error(expected[-drafts - 1 :], logits[index]))
            texts[index] += rows[index][: kept[index]]
            length = len(texts[index])
            errors = state_error(fresh(model, texts[index]).state(0, length), target.state(slot, length))
            worst.state = max(worst.state, *errors.values())
    return worst


def script(drafts: int) -> list[int]:
    """Every accept count, and 0 and k back to back."""
    return [*range(drafts + 1), drafts, 0, 0, drafts]


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_every_accept_count_round_after_round(model: Model, drafts: int) -> None:
    worst = rounds(model, drafts, script(drafts))
    assert worst.state < EXACT and worst.logits < EXACT, worst


def test_moe_states(tiny: dict[str, Path]) -> None:
    worst = rounds(load(tiny["moe"]), 2, [1, 0, 2])
    assert worst.state < EXACT and worst.logits < EXACT, worst


Commit = Callable[..., None]


def test_each_part_of_the_rollback_is_seen(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins that keep one row fewer or more, skip one layer, or roll back the recurrent state only."""
    right = RunningState.commit

    def shifted(by: int) -> Commit:
        def commit(self: RunningState[Any], step: Any, kept: torch.Tensor) -> None:
            right(self, step, (kept + by).clamp(max=step.valid, min=torch.zeros_like(kept)))

        return commit

    def skipping(self: RunningState[Any], step: Any, kept: torch.Tensor) -> None:
        right(self, step, step.valid if self.name.endswith("layer 4") else kept)

    def recurrent_only(self: RunningState[Any], step: Any, kept: torch.Tensor) -> None:
        slots = step.slots.tolist()
        ends = {slot: self.advance(self.staged[slot], self.read(slot)) for slot in slots}
        right(self, step, kept)
        for slot in slots:
            self.live[slot] = replace(self.live[slot], conv=ends[slot].conv)

    def transposed(self: RunningState[Any], step: Any, kept: torch.Tensor) -> None:
        right(self, step, kept)
        for slot in step.slots.tolist():
            old = self.live[slot].recurrent
            self.live[slot] = replace(self.live[slot], recurrent=old.transpose(1, 2).reshape(old.shape))

    for twin in (shifted(-1), shifted(1), skipping, recurrent_only, transposed):
        monkeypatch.setattr(RunningState, "commit", twin)
        assert rounds(model, 3, [1, 0, 2]).state > BROKEN, twin.__name__


def test_a_forward_moves_no_live_state_and_a_commit_no_neighbour(model: Model) -> None:
    target = model.target()
    run(target, step_of_requests([tokens(9, 97, 1), tokens(20, 97, 2)], [0, 0], [0, 1]))
    before, neighbour = target.state(0, 9), target.state(1, 20)
    step = step_of_requests([tokens(4, 97, 3)], [9], [0])
    target.forward(step)
    for name, value in target.state(0, 9).items():
        assert torch.equal(before[name], value), name
    target.commit(step, torch.tensor([0]))
    for name, value in target.state(0, 9).items():
        assert torch.equal(before[name], value), name
    run(target, step, [3])
    assert max(state_error(before, target.state(0, 9)).values()) > BROKEN
    for name, value in target.state(1, 20).items():
        assert torch.equal(neighbour[name], value), name


def test_rejected_rows_are_never_read(model: Model) -> None:
    target, ids = model.target(), tokens(16, 97, 4)
    run(target, step_of_requests([ids[:12]], [0], [0]), [9])
    for cache in target.caches.values():
        cache.keys[9:] = cache.values[9:] = float("nan")
    hidden = run(target, step_of_requests([ids[9:]], [9], [0])).final_hidden
    assert error(run(model.target(), step_of_requests([ids], [0], [0])).final_hidden[:, 9:], hidden) < EXACT


def test_a_slot_used_again_starts_empty(model: Model) -> None:
    target, ids = model.target(), tokens(10, 97, 5)
    run(target, step_of_requests([tokens(30, 97, 6)], [0], [3]))
    stale = target.forward(step_of_requests([ids[:2]], [30], [3])).final_hidden
    target.reset(3)
    assert all(
        len(value) == 0 for name, value in target.state(3, 30).items() if name.endswith(("keys", "values"))
    )
    with pytest.raises(ValueError, match="1 rows to keep of slot 3; 0 are staged"):
        target.commit(step_of_requests([ids[:1]], [0], [3]), torch.tensor([1]))
    again = run(target, step_of_requests([ids], [0], [3])).final_hidden
    assert torch.equal(run(model.target(), step_of_requests([ids], [0], [0])).final_hidden, again)
    assert error(again[:, :2], stale) > BROKEN


def test_ragged_requests_are_what_each_is_alone(model: Model) -> None:
    rows = [tokens(count, 97, count) for count in (7, 1, 0, 4)]
    features = replace(step_of_requests(rows, [0] * 4, [0, 1, 2, 3]), taps=(1,))
    together = model.target().forward(features)
    for index, ids in enumerate(rows):
        if ids:
            step = replace(step_of_requests([ids], [0], [0]), taps=(1,))
            alone = model.target().forward(step)
            assert torch.equal(alone.final_hidden[0], together.final_hidden[index, : len(ids)])
            assert torch.equal(alone.layer_output(1)[0], together.layer_output(1)[index, : len(ids)])
        assert not together.final_hidden[index, len(ids) :].any(), "padding rows are zero"


def test_refusals_name_what_is_wrong(model: Model) -> None:
    target = model.target()
    step = step_of_requests([[1, 2]], [0], [5])
    with pytest.raises(ValueError, match="layer 0: 1 rows to keep of slot 5; 0 are staged"):
        target.commit(step, torch.tensor([1]))
    target.forward(step)
    for kept in (3, -1):
        with pytest.raises(ValueError, match=f"{kept} rows to keep of slot 5; 2 are staged"):
            target.commit(step, torch.tensor([kept]))
    target.commit(step, torch.tensor([2]))
    with pytest.raises(ValueError, match="leave no gap"):
        target.forward(step_of_requests([[1, 2]], [7], [5]))
    with pytest.raises(ValueError, match=r"rows at positions \[2, 4\]"):
        target.forward(replace(step, positions=torch.tensor([[2, 4]])))
    with pytest.raises(ValueError, match="slot 5 stands for two requests"):
        target.forward(step_of_requests([[1], [2]], [2, 2], [5, 5]))


def test_a_state_without_a_commit_handler_is_refused_by_name() -> None:
    class Accumulator:
        name = "running mean of layer 3"

    with pytest.raises(ValueError, match="running mean of layer 3 has no commit handler"):
        require_handlers([Accumulator()])
