"""The trained parameters as a released checkpoint: config, weights, tokenizer, generation settings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from benchmarks.demo.model import Parameters, Shape
from benchmarks.demo.tokens import SPECIAL

KEPT_WIDE = ("A_log", "linear_attn.norm.weight")
"""Stored in fp32, as the 3.5 releases do."""

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def rounded(parameters: Parameters) -> Parameters:
    """The parameters with the values that their stored dtypes keep, still fp32."""
    return {name: value.to(stored_dtype(name)).float() for name, value in parameters.items()}


def stored_dtype(name: str) -> torch.dtype:
    return torch.float32 if name.endswith(KEPT_WIDE) else torch.bfloat16


def config(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json in the text-only form."""
    kinds = ["full_attention" if shape.full(layer) else "linear_attention" for layer in range(shape.layers)]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": tokenizer.token_to_id(SPECIAL[0]),
        "full_attention_interval": 4,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "layer_types": kinds,
        "linear_conv_kernel_dim": shape.taps,
        "linear_key_head_dim": shape.key_dim,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_value_head_dim": shape.value_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": shape.context,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "output_gate_type": "swish",
        "partial_rotary_factor": shape.rotary / shape.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": shape.rotary / shape.head_dim,
            "rope_theta": shape.theta,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def write(folder: Path, parameters: Parameters, shape: Shape, tokenizer: Tokenizer) -> None:
    """Every file that a loader of the released form reads."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {n: v.detach().to(stored_dtype(n)).cpu().contiguous() for n, v in parameters.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    end, _, turn_end = (tokenizer.token_to_id(name) for name in SPECIAL)
    files = {
        "config.json": config(shape, tokenizer),
        "generation_config.json": {
            "do_sample": True,
            "eos_token_id": [turn_end, end],
            "pad_token_id": end,
            "temperature": 1.0,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[0],
            "model_max_length": shape.context,
            "chat_template": TEMPLATE,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def read(folder: Path) -> tuple[Parameters, Shape, Tokenizer]:
    """What `write` wrote, fp32."""
    parameters = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    found = json.loads((folder / "config.json").read_text())
    shape = replace(Shape(), hidden=found["hidden_size"], ffn=found["intermediate_size"])
    return parameters, shape, Tokenizer.from_file(str(folder / "tokenizer.json"))


def smaller(shape: Shape) -> Shape:
    """A shape for trying the whole path out on a CPU."""
    return replace(shape, hidden=64, ffn=96)
