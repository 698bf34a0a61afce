"""Released names to weights: prefixes, expert layouts, tied heads, MTP heads, and what is refused."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ft.reference.families.qwen3_5.cast import cast
from ft.reference.families.qwen3_5.load import load_mtp, load_target
from ft.reference.families.qwen3_5.parse import parse
from ft.reference.families.qwen3_5.tiny import RAW, random_tensors
from ft.reference.families.qwen3_5.weights import MoEWeights
from ft.reference.weights.safetensors import SINGLE, Checkpoint, CheckpointError

CONFIGS = {name: parse(raw) for name, raw in RAW.items()}
TENSORS = {name: random_tensors(config, seed=2) for name, config in CONFIGS.items()}
Q = "model.layers.3.self_attn.q_proj.weight"

Tensors = dict[str, Tensor]


def write(folder: Path, tensors: Tensors) -> Checkpoint:
    """A checkpoint in a folder of its own: an earlier one may still be mapped into memory."""
    own = folder / str(len(list(folder.iterdir())))
    own.mkdir()
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, own / SINGLE)
    return Checkpoint(own)


def leaves(weights: Any) -> Iterator[Tensor]:
    if isinstance(weights, Tensor):
        yield weights
    elif isinstance(weights, tuple):
        for item in weights:
            yield from leaves(item)
    elif is_dataclass(weights):
        for item in fields(weights):
            yield from leaves(getattr(weights, item.name))


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def renamed(tensors: Tensors, rule: Callable[[str], str]) -> Tensors:
    return {rule(name): tensor for name, tensor in tensors.items()}


def nested(name: str) -> str:
    return "model.language_model." + name.removeprefix("model.") if name.startswith("model.") else name


def one_file_an_expert(tensors: Tensors, prefix: str) -> Tensors:
    """The layout of re-saved checkpoints for every layer under `prefix`."""
    split: Tensors = {}
    for name, tensor in tensors.items():
        stem, fused, kind = name.rpartition(".experts.")
        if not fused or not name.startswith(prefix):
            split[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            parts = (
                zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True) if kind == "gate_up_proj" else ()
            )
            for part, rows in parts or [("down_proj", matrix)]:
                split[f"{stem}.experts.{expert}.{part}.weight"] = rows
    return split


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_every_tensor_has_a_place_under_both_prefixes(kind: str, tmp_path: Path) -> None:
    config, tensors = CONFIGS[kind], TENSORS[kind]
    flat = write(tmp_path, tensors)
    trunk, mtp = load_target(flat, config), load_mtp(flat, config)
    flat.finish()
    assert sum(t.numel() for t in (*leaves(trunk), *leaves(mtp))) == sum(t.numel() for t in tensors.values())
    vision = {"model.visual.patch_embed.weight": torch.ones(2)}
    deep = write(tmp_path, {**renamed(tensors, nested), **vision})
    assert same(trunk, load_target(deep, config)) and same(mtp, load_mtp(deep, config))


def test_the_other_spelling_of_mtp_names_with_and_without_the_trunk_loaded(tmp_path: Path) -> None:
    config, tensors = CONFIGS["dense"], TENSORS["dense"]
    mtp = load_mtp(write(tmp_path, tensors), config)
    rule = lambda name: "model." + name if name.startswith("mtp.") else name
    checkpoint = write(tmp_path, renamed(tensors, rule))
    assert same(mtp, load_mtp(checkpoint, config)), "a checkpoint opened for the head alone"
    load_target(checkpoint, config)
    assert same(mtp, load_mtp(checkpoint, config))


@pytest.mark.parametrize("prefix", ["", "model.layers.2.", "mtp."])
def test_expert_layouts_are_read_layer_by_layer(prefix: str, tmp_path: Path) -> None:
    config, tensors = CONFIGS["moe"], TENSORS["moe"]
    fused = write(tmp_path, tensors)
    trunk, mtp = load_target(fused, config), load_mtp(fused, config)
    split = one_file_an_expert(tensors, prefix)
    assert len(split) > len(tensors)
    checkpoint = write(tmp_path, split)
    assert same(trunk, load_target(checkpoint, config)) and same(mtp, load_mtp(checkpoint, config))
    mlp = trunk.layers[0].mlp
    assert isinstance(mlp, MoEWeights) and not torch.equal(mlp.gate_up, mlp.gate_up.roll(20, 1)), (
        "halves differ"
    )


def test_a_tied_head_may_be_absent_or_equal_but_not_other(tmp_path: Path) -> None:
    tied, tensors = replace(CONFIGS["dense"], tied=True), dict(TENSORS["dense"])
    with pytest.raises(CheckpointError, match="tie_word_embeddings is true, and lm_head.weight differs"):
        load_target(write(tmp_path, tensors), tied)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    assert (weights := load_target(write(tmp_path, tensors), tied)).head is weights.embedding
    del tensors["lm_head.weight"]
    checkpoint = write(tmp_path, tensors)
    weights = cast(load_target(checkpoint, tied), torch.float64)
    assert weights.head is weights.embedding
    with pytest.raises(CheckpointError, match=r"tensor lm_head.weight of shape \[97, 48\] is missing"):
        load_target(checkpoint, CONFIGS["dense"])


def test_stored_dtypes_go_straight_to_the_computing_one(tmp_path: Path) -> None:
    half = {name: t if name.endswith("A_log") else t.bfloat16() for name, t in TENSORS["dense"].items()}
    weights = load_target(write(tmp_path, half), CONFIGS["dense"])
    assert weights.norm.dtype == torch.bfloat16
    widened = list(leaves(cast(weights, torch.float64)))
    assert {tensor.dtype for tensor in widened} == {torch.float64}
    assert all(torch.equal(a.double(), b) for a, b in zip(leaves(weights), widened, strict=True))
    a_log = cast(weights, torch.float64).layers[0].mixer
    assert torch.equal(getattr(a_log, "a_log"), TENSORS["dense"]["model.layers.0.linear_attn.A_log"].double())  # noqa: B009


def test_config_and_tensors_that_disagree_about_the_head(tmp_path: Path) -> None:
    config, tensors = CONFIGS["dense"], TENSORS["dense"]
    without = write(tmp_path, {name: t for name, t in tensors.items() if not name.startswith("mtp.")})
    load_target(without, config)
    with pytest.raises(
        CheckpointError, match=r"no mtp\.\* tensors \(mtp_num_hidden_layers in the config is 1\)"
    ):
        load_mtp(without, config)
    checkpoint = write(tmp_path, tensors)
    with pytest.raises(
        CheckpointError, match="there are mtp.* tensors, and the config's mtp_num_hidden_layers is 0"
    ):
        load_mtp(checkpoint, replace(config, mtp_layers=0))


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def beside(name: str, tensor: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensor}


ONE = torch.ones(1)
BROKEN_TRUNKS: list[tuple[str, Callable[[Tensors], Tensors]]] = [
    (f"tensor {Q} of shape .* is missing", without(Q)),
    ("no trunk; neither model.language_model.embed_tokens.weight", without("model.embed_tokens.weight")),
    ("tensor model.norm.weight of shape", without("model.norm.weight")),
    (r"tensor model\.norm\.weight has shape \[1\], expected \[48\]", beside("model.norm.weight", ONE)),
    ("no place for: model.layers.8.mlp.up_proj.weight", beside("model.layers.8.mlp.up_proj.weight", ONE)),
    (
        "no place for: model.layers.0.self_attn.q_proj.bias",
        beside("model.layers.0.self_attn.q_proj.bias", ONE),
    ),
    (f"tensor {Q}_scale_inv belongs to quantised", beside(f"{Q}_scale_inv", ONE)),
    ("q_proj.scales belongs to quantised", beside("model.layers.3.self_attn.q_proj.scales", ONE)),
    (
        f"{SINGLE}: tensor {Q} is stored as torch.float8_e4m3fn",
        beside(Q, torch.ones(768, 48).to(torch.float8_e4m3fn)),
    ),
    (f"{SINGLE}: tensor {Q} is stored as torch.uint8", beside(Q, torch.ones(768, 24, dtype=torch.uint8))),
]


@pytest.mark.parametrize(("message", "change"), BROKEN_TRUNKS, ids=[text[:50] for text, _ in BROKEN_TRUNKS])
def test_a_broken_trunk_is_named(message: str, change: Callable[[Tensors], Tensors], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_target(write(tmp_path, change(TENSORS["dense"])), CONFIGS["dense"])


BROKEN_HEADS: list[tuple[str, Callable[[Tensors], Tensors]]] = [
    (r"tensor mtp\.fc\.weight of shape \[48, 96\] is missing", without("mtp.fc.weight")),
    ("no place for: mtp.layers.1.mlp.up_proj.weight", beside("mtp.layers.1.mlp.up_proj.weight", ONE)),
    ("no place for: model.mtp.fc.weight", beside("model.mtp.fc.weight", ONE)),
    ("tensor mtp.fc.weight_scale belongs to quantised", beside("mtp.fc.weight_scale", ONE)),
]


@pytest.mark.parametrize(("message", "change"), BROKEN_HEADS, ids=[text[:50] for text, _ in BROKEN_HEADS])
def test_a_broken_head_is_named_and_leaves_the_trunk_alone(
    message: str, change: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    checkpoint = write(tmp_path, change(TENSORS["dense"]))
    load_target(checkpoint, CONFIGS["dense"])
    with pytest.raises(CheckpointError, match=message):
        load_mtp(checkpoint, CONFIGS["dense"])


def test_both_layouts_of_one_layer_are_too_many(tmp_path: Path) -> None:
    twice = TENSORS["moe"] | one_file_an_expert(TENSORS["moe"], "model.layers.0.")
    with pytest.raises(CheckpointError, match="no place for: model.layers.0.mlp.experts.0.down_proj.weight"):
        load_target(write(tmp_path, twice), CONFIGS["moe"])
