"""The reference target against transformers on the same tiny checkpoint. In fp64 only a wrong formula shows.

The eight-layer tinies are off by 2e-13 in fp64, and in fp32 by 1e-4, as far as transformers' own fp32 is from fp64.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from .live import Live, empty_cache, live
from .rig import Model, error, load, run, step_of_requests, tokens

EXACT = 1e-10
SINGLE = 1e-3
BROKEN = 1e-2
CHUNKS = (37, 1, 1, 1, 1, 1, 4, 7, 1)
KINDS = ("dense", "moe")


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tiny: dict[str, Path]) -> tuple[Model, Live]:
    folder = tiny[request.param]
    return load(folder), live(request.param, folder)


def ids_of(model: Model) -> list[int]:
    return tokens(83, model.config.vocabulary, seed=3)


def logits(model: Model, ids: list[int], rope: Tensor | None = None) -> Tensor:
    target = model.target()
    step = step_of_requests([ids], [0], [0])
    step = step if rope is None else replace(step, rope_positions=rope)
    return target.logits(run(target, step).final_hidden)[0]


def test_every_layer_and_the_logits(pair: tuple[Model, Live]) -> None:
    model, other = pair
    ids, layers = ids_of(model), model.config.layers
    expected, target = other.forward(ids), model.target()
    step = replace(step_of_requests([ids], [0], [0]), taps=tuple(range(layers)))
    features = run(target, step)
    assert error(expected.logits[0], target.logits(features.final_hidden)[0]) < EXACT
    assert error(expected.hidden_states[-1][0], features.final_hidden[0]) < EXACT
    for layer in range(layers - 1):
        assert error(expected.hidden_states[layer + 1][0], features.layer_output(layer)[0]) < EXACT, layer
    assert error(features.layer_output(layers - 1), features.final_hidden) > 1, (
        "a tap stands before the final norm"
    )


def test_three_rope_axes(pair: tuple[Model, Live]) -> None:
    model, other = pair
    ids = ids_of(model)
    rope = torch.randint(0, 300, (3, 1, len(ids)), generator=torch.Generator().manual_seed(5))
    expected = other.forward(ids, rope).logits[0]
    assert error(expected, logits(model, ids, rope)) < EXACT
    assert error(expected, logits(model, ids, rope[:1].expand(3, -1, -1))) > 1, "one axis must not do"


def test_cached_decode_in_steps_and_chunks(pair: tuple[Model, Live]) -> None:
    model, other = pair
    ids = ids_of(model)[: sum(CHUNKS)]
    whole, cache, target, start = other.forward(ids).logits[0], empty_cache(other), model.target(), 0
    for count in CHUNKS:
        chunk = ids[start : start + count]
        expected = other.forward(chunk, cache=cache).logits[0]
        actual = target.logits(run(target, step_of_requests([chunk], [start], [0])).final_hidden)[0]
        assert error(expected, actual) < EXACT
        assert error(whole[start : start + count], actual) < EXACT
        start += count


@pytest.mark.parametrize("forget", ["conv", "recurrent"])
def test_a_state_that_is_not_carried_over_shows(tiny: dict[str, Path], forget: str) -> None:
    model = load(tiny["dense"])
    ids = ids_of(model)
    target = model.target()
    run(target, step_of_requests([ids[:37]], [0], [0]))
    for state in target.states.values():
        empty = getattr(state.empty(), forget)
        state.live[0] = replace(state.live[0], **{forget: empty})
    actual = target.logits(run(target, step_of_requests([ids[37:]], [37], [0])).final_hidden)[0]
    assert error(logits(model, ids)[37:], actual) > BROKEN


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision(kind: str, tiny: dict[str, Path]) -> None:
    model = load(tiny[kind], torch.float32)
    ids = ids_of(model)
    actual = logits(model, ids)
    assert actual.dtype == torch.float32
    assert error(live(kind, tiny[kind], torch.float32).forward(ids).logits[0], actual) < SINGLE
    assert error(logits(load(tiny[kind]), ids), actual) < SINGLE
