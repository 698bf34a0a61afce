"""Checkpoint folders: one file or shards, every tensor claimed once, errors that name file and tensor."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ft.reference.weights.safetensors import INDEX, SINGLE, Checkpoint, CheckpointError

TENSORS = {"a.weight": torch.ones(2, 3, dtype=torch.bfloat16), "b": torch.zeros(4)}


def shards(folder: Path) -> dict[str, str]:
    """Two shards and their index."""
    weight_map = {}
    for number, (name, tensor) in enumerate(TENSORS.items()):
        file = f"model-{number}.safetensors"
        save_file({name: tensor}, folder / file)
        weight_map[name] = file
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture(params=["single", "sharded"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "single":
        save_file(TENSORS, tmp_path / SINGLE)
    else:
        shards(tmp_path)
    return tmp_path


def test_tensors_come_in_their_stored_dtype_and_all_are_claimed(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    assert checkpoint.names == ["a.weight", "b"] and checkpoint.has("b") and not checkpoint.has("c")
    assert checkpoint.stored_bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    for name, tensor in TENSORS.items():
        taken = checkpoint.take(name, tensor.shape)
        assert taken.dtype == tensor.dtype and torch.equal(taken, tensor)
    checkpoint.finish()


def test_unclaimed_tensors_are_listed(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    checkpoint.take("b", (4,))
    with pytest.raises(CheckpointError, match=r"no place for: a\.weight$") as caught:
        checkpoint.finish()
    assert str(folder) in str(caught.value)
    checkpoint.finish(ignored=("a.",))
    checkpoint.finish(within=("b",))


def test_missing_and_misshapen_tensors(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"tensor c of shape \[5\] is missing"):
        checkpoint.take("c", (5,))
    with pytest.raises(CheckpointError, match=r"\.safetensors: tensor b has shape \[4\], expected \[2, 2\]"):
        checkpoint.take("b", (2, 2))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float8_e4m3fn])
def test_quantised_dtypes_are_refused_whatever_their_shape(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 2, dtype=dtype)}, tmp_path / SINGLE)
    with pytest.raises(CheckpointError, match=f"{SINGLE}: tensor a is stored as {dtype}"):
        Checkpoint(tmp_path).take("a", (2, 4))


def test_missing_folder_and_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such folder"):
        Checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=f"holds neither {SINGLE} nor {INDEX}"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 30, -1])
def test_a_truncated_file_is_named(kept: int, tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=f"{SINGLE}: damaged"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": null}'])
def test_a_damaged_index_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=f"{INDEX}: not a readable index"):
        Checkpoint(tmp_path)


def test_an_index_that_does_not_fit_its_shards(tmp_path: Path) -> None:
    weight_map = shards(tmp_path)
    write_index(tmp_path, {**weight_map, "c": "model-1.safetensors"})
    with pytest.raises(CheckpointError, match="model-1.safetensors: the index places c in it"):
        Checkpoint(tmp_path)
    write_index(tmp_path, {**weight_map, "c": "model-9.safetensors"})
    with pytest.raises(CheckpointError, match=f"{INDEX}: names the shard model-9.safetensors"):
        Checkpoint(tmp_path)
    save_file({"b": TENSORS["b"], "left.over": torch.ones(1)}, tmp_path / "model-1.safetensors")
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="model-1.safetensors: holds left.over, which"):
        Checkpoint(tmp_path)
