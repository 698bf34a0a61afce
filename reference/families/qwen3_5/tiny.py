"""Tiny random checkpoints in released form that exercise every branch (specs qwen3_5 10.1).

Hv/Hk = 3, Dk != Dv != D, nq/nkv = 3, all three rope axes in use. Nothing is at its neutral value: a norm at zero or a
bias at one would hide a wrong convention.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.parse import parse
from ft.reference.registry import Tiny

VOCABULARY = 97

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "full_attention_interval": 4,
    "eos_token_id": 96,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
DENSE = {"model_type": "qwen3_5_text", "intermediate_size": 80}
MOE = {
    "model_type": "qwen3_5_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
MTP = {"mtp_num_hidden_layers": 1}

RAW: dict[str, dict[str, Any]] = {
    "dense": {**COMMON, **DENSE, **MTP, "architectures": ["Qwen3_5ForCausalLM"]},
    "moe": {**COMMON, **MOE, **MTP, "architectures": ["Qwen3_5MoeForCausalLM"]},
    "trunk": {**COMMON, **DENSE, "num_hidden_layers": 4, "architectures": ["Qwen3_5ForCausalLM"]},
}

TINY = tuple(Tiny(name, VOCABULARY, has_mtp="mtp_num_hidden_layers" in raw) for name, raw in RAW.items())


def write_tiny(name: str, folder: Path, seed: int) -> None:
    """Write config.json and model.safetensors of a tiny, fp32, every tensor random."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(RAW[name], indent=2))
    save_file(random_tensors(parse(RAW[name]), seed), folder / "model.safetensors")


def random_tensors(config: Config, seed: int) -> dict[str, Tensor]:
    """A state dict of the released names."""
    draw = torch.Generator().manual_seed(seed)
    shapes = dict(_shapes(config))
    return {name: _random(name, shape, draw) for name, shape in shapes.items()}


def _random(name: str, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=draw)
    if name.endswith("A_log"):
        return torch.log(torch.rand(shape, generator=draw) * 7.8 + 0.2)
    if name.endswith("dt_bias"):
        return 0.5 * noise
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.3 * noise
    if name.endswith("conv1d.weight"):
        return 0.4 * noise
    if len(shape) == 1:
        return 0.3 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    return noise / math.sqrt(shape[-1])


def _shapes(config: Config) -> list[tuple[str, tuple[int, ...]]]:
    hidden = config.hidden
    found: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (config.vocabulary, hidden))]
    for layer in range(config.layers):
        found += _block(config, f"model.layers.{layer}.", config.is_full_attention(layer))
    found += [("model.norm.weight", (hidden,)), ("lm_head.weight", (config.vocabulary, hidden))]
    if config.mtp_layers:
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        found += [
            ("mtp.fc.weight", (hidden, 2 * hidden)),
            *((f"mtp.{name}.weight", (hidden,)) for name in names),
        ]
        found += _block(config, "mtp.layers.0.", full=True)
    return found


def _block(config: Config, prefix: str, full: bool) -> list[tuple[str, tuple[int, ...]]]:
    hidden, dim = config.hidden, config.head_dim
    values, heads = config.linear_value_heads * config.linear_value_dim, config.linear_value_heads
    norms = [(f"{prefix}{name}_layernorm.weight", (hidden,)) for name in ("input", "post_attention")]
    attention: list[tuple[str, tuple[int, ...]]] = [
        ("self_attn.q_proj.weight", (2 * config.query_heads * dim, hidden)),
        ("self_attn.k_proj.weight", (config.kv_heads * dim, hidden)),
        ("self_attn.v_proj.weight", (config.kv_heads * dim, hidden)),
        ("self_attn.o_proj.weight", (hidden, config.query_heads * dim)),
        ("self_attn.q_norm.weight", (dim,)),
        ("self_attn.k_norm.weight", (dim,)),
    ]
    linear: list[tuple[str, tuple[int, ...]]] = [
        ("linear_attn.in_proj_qkv.weight", (config.conv_channels, hidden)),
        ("linear_attn.in_proj_z.weight", (values, hidden)),
        ("linear_attn.in_proj_b.weight", (heads, hidden)),
        ("linear_attn.in_proj_a.weight", (heads, hidden)),
        ("linear_attn.conv1d.weight", (config.conv_channels, 1, config.conv_taps)),
        ("linear_attn.A_log", (heads,)),
        ("linear_attn.dt_bias", (heads,)),
        ("linear_attn.norm.weight", (config.linear_value_dim,)),
        ("linear_attn.out_proj.weight", (hidden, values)),
    ]
    mixer = [(prefix + name, shape) for name, shape in (attention if full else linear)]
    return [*norms, *mixer, *_feed_forward(config, f"{prefix}mlp.")]


def _feed_forward(config: Config, prefix: str) -> list[tuple[str, tuple[int, ...]]]:
    hidden, experts, width = config.hidden, config.experts, config.expert_intermediate
    if not experts:
        return _dense(prefix, hidden, config.intermediate)
    return [
        (f"{prefix}gate.weight", (experts, hidden)),
        (f"{prefix}experts.gate_up_proj", (experts, 2 * width, hidden)),
        (f"{prefix}experts.down_proj", (experts, hidden, width)),
        *_dense(f"{prefix}shared_expert.", hidden, config.shared_intermediate),
        (f"{prefix}shared_expert_gate.weight", (1, hidden)),
    ]


def _dense(prefix: str, hidden: int, width: int) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (f"{prefix}gate_proj.weight", (width, hidden)),
        (f"{prefix}up_proj.weight", (width, hidden)),
        (f"{prefix}down_proj.weight", (hidden, width)),
    ]
