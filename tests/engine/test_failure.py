"""A request whose logits are not finite fails alone: the next one, in its slot and its pages, is untouched."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ft.fast.build import build
from ft.fast.engine import Engine
from ft.fast.facts import make_plan
from ft.fast.inputs import Flags
from ft.fast.request import FinishReason, Request, Update
from ft.reference.registry import family_named

BAD = 50


def last_of(engine: Engine, request: Request) -> tuple[list[int], Update]:
    engine.add(request)
    updates: list[Update] = []
    while not engine.idle:
        updates += engine.step()
    return [token for update in updates for token in update.tokens], updates[-1]


@pytest.mark.parametrize("algorithm", ["off", "mtp"])
def test_a_request_that_fails_leaves_nothing_to_the_next(tmp_path: Path, algorithm: str) -> None:
    family_named("qwen3_5").write_tiny("dense", tmp_path, 0)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][BAD] = float("nan")
    save_file({name: torch.clone(value) for name, value in tensors.items()}, path)
    flags = Flags(
        model=tmp_path,
        device="cpu",
        dtype="float32",
        context_length=128,
        page_size=4,
        max_running_requests=1,
        speculative_algorithm=algorithm,
    )
    healthy = Request("b", tuple(i % BAD for i in range(1, 71)), max_tokens=12)
    expected, _ = last_of(build(make_plan(flags)), healthy)
    assert len(expected) == 12
    engine = build(make_plan(flags))
    tokens, last = last_of(engine, Request("a", (BAD,) * 70, max_tokens=12))
    assert (tokens, last.finish) == ([], FinishReason.ERROR) and last.error
    assert last_of(engine, healthy)[0] == expected
