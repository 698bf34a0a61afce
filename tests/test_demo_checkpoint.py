"""The checkpoint that ships with the package: its form, its record, and what it computes against stored values.

Stored values: tests/goldens/demo, written by benchmarks.demo.golden from the network it was trained with.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from ft.fast.demo import FOLDER
from ft.reference.drafting import DraftChooser
from ft.reference.edits import RequestLaw
from ft.reference.loop import prefill, step_of
from ft.reference.registry import family_of
from ft.reference.types import Sampling
from ft.reference.weights.safetensors import Checkpoint

EXPECTED = Path(__file__).parent / "goldens" / "demo" / "expected.safetensors"
CLOSE = 1e-3
LARGEST = 16_000_000
RECORDED = {"command", "device", "torch", "seed", "corpus", "tokens", "trunk", "mtp", "speculation"}
PERMISSIVE = {"PSF-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"}


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return load_file(FOLDER / "model.safetensors")


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "config.json").read_text())
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    return load_file(EXPECTED)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER.parent / "training.json").read_text())
    return found


def mtp_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a dense MTP layer (specs qwen3_5 5.1)."""
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    yield "mtp.fc.weight", (hidden, 2 * hidden)
    for name in ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"):
        yield f"{name}.weight", (hidden,)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"mtp.layers.0.{name}.weight", (hidden,)
    attention = {"q_proj": (2 * queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
    for name, shape in {**attention, "o_proj": (hidden, queries)}.items():
        yield f"mtp.layers.0.self_attn.{name}.weight", shape
    for name in ("q_norm", "k_norm"):
        yield f"mtp.layers.0.self_attn.{name}.weight", (dim,)
    for name, shape in {
        "gate_proj": (ffn, hidden),
        "up_proj": (ffn, hidden),
        "down_proj": (hidden, ffn),
    }.items():
        yield f"mtp.layers.0.mlp.{name}.weight", shape


def test_target_and_draft_stay_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < LARGEST


def test_every_mtp_tensor_is_there(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith("mtp.")}
    assert found == dict(mtp_shapes(config))
    assert config["mtp_num_hidden_layers"] == 1


def test_only_the_decay_and_the_gated_norm_are_wide(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        wide = name.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))
        assert tensor.dtype == (torch.float32 if wide else torch.bfloat16), name


def test_transformers_gives_the_expected_logits(expected: dict[str, Tensor]) -> None:
    transformers = pytest.importorskip("transformers")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["mismatched_keys"]
    with torch.inference_mode():
        logits = model(expected["ids"][None]).logits[0, expected["rows"]]
    assert float((logits - expected["logits"]).abs().max()) < CLOSE


def test_the_reference_gives_the_expected_logits_and_drafts(expected: dict[str, Tensor]) -> None:
    family = family_of("qwen3_5_text")
    config = family.read_config(FOLDER)
    target = family.target(Checkpoint(FOLDER), config)
    proposer = family.drafts["mtp"](
        Checkpoint(FOLDER), config, target, DraftChooser({0: RequestLaw(Sampling(), 0)})
    )
    ids, pending = expected["ids"].tolist(), int(expected["pending"])
    features = target.forward(step_of(ids, 0, 0, ()))
    logits = target.logits(features.final_hidden)[0, expected["rows"]]
    assert float((logits - expected["logits"]).abs().max()) < CLOSE
    target.reset(0)
    prefill(target, proposer, [*ids, pending], 64, 0)
    count = expected["drafts"].numel()
    proposal = proposer.propose(step_of([pending], len(ids), 0, ()), torch.tensor([count]))
    assert torch.equal(proposal.tokens[0], expected["drafts"])


def test_special_tokens_and_template(config: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert [tokenizer.encode(name).ids for name in names] == [[tokenizer.token_to_id(name)] for name in names]
    settings = json.loads((FOLDER / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in settings["chat_template"]
    text = "def f(x):\n    return 'é \N{SNOWMAN}'\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_prompts_are_fifty_with_source_and_licence() -> None:
    prompts = json.loads((FOLDER.parent / "prompts.json").read_text())
    assert len(prompts) == 50 and len({item["text"] for item in prompts}) == 50
    assert all(item["text"] and item["package"] and item["licence"] in PERMISSIVE for item in prompts)


def test_record_is_complete(record: dict[str, Any]) -> None:
    assert record.keys() >= RECORDED
    assert all(
        item["licence"] in PERMISSIVE and item["bytes"] > 0 and item["version"] for item in record["corpus"]
    )
    assert record["tokens"]["learnt"] >= 60_000_000
    for part in ("trunk", "mtp"):
        assert record[part]["steps"] > 0 and record[part]["losses"]
    assert record["trunk"]["held_out_nats"] > 0


def test_drafts_are_worth_their_time(record: dict[str, Any]) -> None:
    found = record["speculation"]
    assert (found["prompts"], found["tokens"], found["drafts"]) == (50, 200, 3)
    assert found["greedy"]["tokens_per_step"] >= 2.5
    assert found["sampled"]["tokens_per_step"] >= 1.8
    assert found["sampled"]["acceptance"][0] >= 0.65


def test_the_sampled_figures_are_means_of_many_draws(record: dict[str, Any]) -> None:
    """Rejection takes fresh seeds: one draw of all prompts can lie several hundredths from the next."""
    sampled = record["speculation"]["sampled"]
    draws = sampled["first_draft_by_draw"]
    assert len(draws) >= 10
    assert sampled["acceptance"][0] == pytest.approx(sum(draws) / len(draws), abs=1e-3)


def test_transformers_loads_it_and_gives_the_same_logits(expected: dict[str, Tensor]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with torch.no_grad():
        logits = model(expected["ids"][None]).logits[0]
    assert float((logits[expected["rows"]] - expected["logits"]).abs().max()) < CLOSE


def test_the_card_names_every_package(record: dict[str, Any]) -> None:
    card = (FOLDER / "README.md").read_text()
    assert all(
        f"| {item['package']} | {item['version']} | {item['licence']} |" in card for item in record["corpus"]
    )
