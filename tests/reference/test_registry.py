"""The registry finds families by their folders, and its tinies are checkpoints in which nothing is neutral."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ft.reference.families
from ft.reference import registry
from ft.reference.families.qwen3_5 import FAMILY
from ft.reference.registry import families, family_named, family_of, model_type_of
from ft.reference.weights.safetensors import Checkpoint

from .rig import GREEDY, step_of_requests, tokens

TYPES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_mtp")


def test_the_family_is_found_by_name_and_by_each_of_its_types() -> None:
    assert FAMILY in families() and family_named("qwen3_5") is FAMILY
    assert all(family_of(kind) is FAMILY for kind in TYPES)


def test_what_is_not_known_is_answered_with_what_is() -> None:
    with pytest.raises(
        ValueError, match=f"model_type 'llama' is not supported; supported: .*{', '.join(TYPES)}"
    ):
        family_of("llama")
    with pytest.raises(ValueError, match="family 'llama' is not known; there are: .*qwen3_5"):
        family_named("llama")


def test_a_new_folder_is_a_family_and_a_folder_without_init_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("aaa_new", "bare"):
        (tmp_path / name).mkdir()
    (tmp_path / "aaa_new" / "__init__.py").write_text(
        "from dataclasses import replace\nfrom ft.reference.families.qwen3_5 import FAMILY as OLD\n"
        "FAMILY = replace(OLD, name='aaa_new', model_types=('aaa',))\n"
    )
    (tmp_path / "stray.py").write_text("")
    monkeypatch.setattr(ft.reference.families, "__path__", [*ft.reference.families.__path__, str(tmp_path)])
    registry.families.cache_clear()
    try:
        assert family_of("aaa").name == "aaa_new" and "bare" not in {family.name for family in families()}
    finally:
        registry.families.cache_clear()
        sys.modules.pop("ft.reference.families.aaa_new", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{", "not valid JSON"),
        ("{}", "model_type is None"),
        ("[]", "model_type is None"),
    ],
)
def test_a_bad_config_file_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        model_type_of(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_importing_the_registry_and_its_families_needs_neither_the_engine_nor_transformers() -> None:
    code = (
        "import sys; from ft.reference.registry import families; families(); "
        "print([m for m in sys.modules if m.split('.')[0] == 'transformers' or m.startswith('ft.fast')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("tiny", FAMILY.tiny, ids=lambda tiny: tiny.name)
def test_a_tiny_is_a_checkpoint_that_runs(tiny: registry.Tiny, tmp_path: Path) -> None:
    FAMILY.write_tiny(tiny.name, tmp_path, 5)
    assert family_of(model_type_of(tmp_path)) is FAMILY
    config = FAMILY.read_config(tmp_path)
    target = FAMILY.target(Checkpoint(tmp_path), config)
    assert target.vocabulary == tiny.vocabulary == config.vocabulary
    features = target.forward(step_of_requests([tokens(5, tiny.vocabulary)], [0], [0]))
    assert bool(torch.isfinite(target.logits(features.final_hidden)).all())
    assert tiny.has_mtp == any(name.startswith("mtp.") for name in Checkpoint(tmp_path).names)
    if tiny.has_mtp:
        assert FAMILY.drafts["mtp"](Checkpoint(tmp_path), config, target, GREEDY).name == "mtp"


@pytest.mark.parametrize("tiny", FAMILY.tiny, ids=lambda tiny: tiny.name)
def test_a_tiny_is_the_same_for_a_seed_and_random_in_every_tensor(
    tiny: registry.Tiny, tmp_path: Path
) -> None:
    for folder, seed in (("one", 1), ("same", 1), ("other", 2)):
        FAMILY.write_tiny(tiny.name, tmp_path / folder, seed)
    one, same, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "same", "other"))
    for name, tensor in one.items():
        assert torch.equal(tensor, same[name]) and not torch.equal(tensor, other[name]), name
        assert float(tensor.std()) > 0.05, f"{name} is close to constant"
    neutral = re.compile(r"norm\.weight$|A_log$|dt_bias$")
    for name in filter(neutral.search, one):
        assert bool(((one[name] - 0).abs() > 0.01).any() and ((one[name] - 1).abs() > 0.01).any()), name


def test_the_tinies_exercise_every_branch() -> None:
    from ft.reference.families.qwen3_5.tiny import RAW

    for raw in RAW.values():
        assert raw["linear_num_value_heads"] == 3 * raw["linear_num_key_heads"] > 3
        assert len({raw["linear_key_head_dim"], raw["linear_value_head_dim"], raw["head_dim"]}) == 3
        assert all(raw["rope_parameters"]["mrope_section"])
    assert {"num_experts" in raw for raw in RAW.values()} == {True, False}
    json.dumps(RAW)
