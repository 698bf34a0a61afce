"""Facts of checkpoints and devices, read from files written here."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from ft.fast.facts import free_host_bytes, make_plan, read_checkpoint_facts, read_device_facts
from ft.fast.inputs import Flags
from ft.fast.refusal import Refusal
from ft.reference.registry import Family, Tiny, families

TINIES = [
    pytest.param(family, tiny, id=f"{family.name}-{tiny.name}")
    for family in families()
    for tiny in family.tiny
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random checkpoint with an MTP layer."""
    family = families()[0]
    name = next(tiny.name for tiny in family.tiny if tiny.has_mtp)
    family.write_tiny(name, tmp_path / "checkpoint", 0)
    return tmp_path / "checkpoint"


@pytest.mark.parametrize(("family", "tiny"), TINIES)
def test_parameters_are_counted_as_stored(family: Family, tiny: Tiny, tmp_path: Path) -> None:
    family.write_tiny(tiny.name, tmp_path, 0)
    counts = {True: 0, False: 0}
    size = 0
    for path in tmp_path.glob("*.safetensors"):
        size += path.stat().st_size
        with safe_open(path, framework="pt") as stored:
            names = stored.keys()
            for name in names:
                if "visual" not in name:
                    counts["mtp." in name] += stored.get_tensor(name).numel()
    facts = read_checkpoint_facts(tmp_path)
    assert (facts.parameters, facts.draft_parameters) == (counts[False], counts[True])
    assert (facts.family, facts.vocabulary, facts.has_mtp) == (family.name, tiny.vocabulary, tiny.has_mtp)
    assert facts.stored_bytes == size


def test_a_dummy_needs_a_config_only(folder: Path) -> None:
    stored = read_checkpoint_facts(folder)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    dummy = read_checkpoint_facts(folder, dummy=True)
    assert (dummy.parameters, dummy.draft_parameters) == (stored.parameters, stored.draft_parameters)
    assert dummy.has_mtp
    assert dummy.stored_bytes == 0


def refused(folder: Path) -> str:
    with pytest.raises(Refusal) as caught:
        read_checkpoint_facts(folder)
    (problem,) = caught.value.problems
    assert problem.subject == f"--model {folder}"
    return str(problem)


def test_no_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in refused(tmp_path / "nowhere")


def test_no_config(tmp_path: Path) -> None:
    assert "config.json" in refused(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"model_type": 3}', '{"model_type": "mamba"}', "\x00"]
)
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refused(folder)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"model_type": "\xff"}'])
def test_a_config_that_is_no_text(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    refused(folder)


def test_a_config_without_a_field(folder: Path) -> None:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    del raw.get("text_config", raw)["vocab_size"]
    path.write_text(json.dumps(raw))
    assert "vocab_size" in refused(folder)


def test_no_weights(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    assert "model.safetensors" in refused(folder)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_damaged_weight_file(folder: Path, kept: int) -> None:
    path = next(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:kept])
    assert path.name in refused(folder)


def test_the_cpu() -> None:
    facts = read_device_facts("cpu")
    assert (facts.kind, facts.name) == ("cpu", "cpu")
    assert 1 << 20 < facts.free_bytes < 1 << 50


def test_the_device_left_open() -> None:
    assert read_device_facts().kind == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "cuda:99"])
def test_no_such_device(name: str) -> None:
    with pytest.raises(Refusal, match="--device"):
        read_device_facts(name)


def test_free_memory_of_a_host(tmp_path: Path) -> None:
    report = tmp_path / "meminfo"
    report.write_text("MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n")
    assert free_host_bytes(report) == 9000 * 1024
    assert free_host_bytes(tmp_path / "missing") > 1 << 20


def test_a_plan_from_files(folder: Path) -> None:
    plan = make_plan(Flags(model=folder, device="cpu", speculative_algorithm="mtp"))
    assert (plan.model, plan.device, plan.algorithm, plan.drafts) == (folder, "cpu", "mtp", 3)
