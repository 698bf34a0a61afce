"""Engines built from a checkpoint folder: dummy weights need a config only, real ones every tensor."""

from pathlib import Path

import pytest

from ft.fast.build import build
from ft.fast.facts import make_plan
from ft.fast.inputs import Flags
from ft.fast.request import Request
from ft.reference.registry import family_named
from ft.reference.weights.safetensors import CheckpointError


def text(flags: Flags) -> list[int]:
    engine = build(make_plan(flags))
    engine.add(Request("a", tuple(range(1, 80)), max_tokens=12))
    tokens: list[int] = []
    while not engine.idle:
        for update in engine.step():
            tokens += update.tokens
    return tokens


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_dummy_weights_run_without_weight_files_and_drafts_change_nothing(tmp_path: Path, name: str) -> None:
    family_named("qwen3_5").write_tiny(name, tmp_path, 0)
    (tmp_path / "model.safetensors").unlink()

    def flags(algorithm: str) -> Flags:
        return Flags(
            model=tmp_path,
            dummy_weight=True,
            device="cpu",
            dtype="float32",
            context_length=128,
            speculative_algorithm=algorithm,
        )

    off = text(flags("off"))
    assert len(off) == 12 and text(flags("mtp")) == off


def test_dummy_weights_differ_from_those_of_the_files(tmp_path: Path) -> None:
    family_named("qwen3_5").write_tiny("dense", tmp_path, 0)
    real, dummy = (
        text(Flags(model=tmp_path, device="cpu", dtype="float32", context_length=128, dummy_weight=made))
        for made in (False, True)
    )
    assert real != dummy


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    family_named("qwen3_5").write_tiny("dense", tmp_path, 0)
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.linear_attn.A_log"]
    save_file(tensors, path)
    plan = make_plan(Flags(model=tmp_path, device="cpu", dtype="float32", context_length=128))
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.linear_attn\.A_log"):
        build(plan)
