"""The same tiny checkpoint in transformers. Imported by tests only."""

import copy
import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from .double import doubled

MODULES = {"dense": ("qwen3_5", "Qwen3_5"), "moe": ("qwen3_5_moe", "Qwen3_5Moe")}


@dataclass(frozen=True)
class Live:
    """A transformers model and the module that defines it."""

    model: Any
    module: ModuleType
    prefix: str
    tensors: dict[str, Tensor]

    def forward(self, ids: list[int], positions: Tensor | None = None, cache: Any = None) -> Any:
        """Logits, hidden states and cache, in the model's dtype. positions: int64 [3, 1, T]."""
        call = {"position_ids": positions, "cache": cache, "use_cache": cache is not None}
        if self.model.dtype == torch.float64:
            with doubled(self.module):
                return self._call(ids, call)
        return self._call(ids, call)

    @torch.inference_mode()
    def _call(self, ids: list[int], call: dict[str, Any]) -> Any:
        return self.model(torch.tensor([ids]), output_hidden_states=True, **call)

    def mtp_layer(self) -> Any:
        """transformers' MTP layer over the family's decoder layer, with the checkpoint's tensors."""
        from transformers.modeling_layers import MtpLayer

        config = copy.deepcopy(self.model.config)
        config.layer_types, config.num_hidden_layers = ["full_attention"], 1
        block = getattr(self.module, f"{self.prefix}DecoderLayer")
        layer: Any = MtpLayer(config, block, getattr(self.module, f"{self.prefix}RMSNorm"), 0, True)
        renamed = {
            "pre_fc_norm_embedding.": "enorm.",
            "pre_fc_norm_hidden.": "hnorm.",
            "fc.": "eh_proj.",
            "norm.": "post_norm.",
            "layers.0.": "mtp_block.",
        }
        tensors = {}
        for name, tensor in self.tensors.items():
            if name.startswith("mtp."):
                short = name.removeprefix("mtp.")
                old = next(old for old in renamed if short.startswith(old))
                tensors[renamed[old] + short.removeprefix(old)] = tensor
        layer.load_state_dict(tensors)
        return layer.to(self.model.dtype)

    @torch.inference_mode()
    def mtp(self, layer: Any, ids: list[int], hidden: Tensor) -> Tensor:
        """Rows [T, H] after the MTP norm, of tokens that follow the rows whose hidden [T, H] they pair with."""
        positions = torch.arange(len(ids)).expand(3, 1, -1)
        causal = torch.full((len(ids), len(ids)), float("-inf"), dtype=hidden.dtype).triu(1)[None, None]
        with doubled(self.module):
            text = self.model.model
            embedded = text.embed_tokens(torch.tensor([ids]))
            angles = text.rotary_emb(embedded, positions)
            output: Tensor = layer(embedded, hidden[None], angles, causal, positions[0], None)
        return output[0]


def live(kind: str, folder: Path, dtype: torch.dtype = torch.float64) -> Live:
    """The checkpoint of `folder` in transformers."""
    name, prefix = MODULES[kind]
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    configs = importlib.import_module(f"transformers.models.{name}.configuration_{name}")
    raw = json.loads((folder / "config.json").read_text())
    config = getattr(configs, f"{prefix}TextConfig")(**raw)
    config._attn_implementation = config._experts_implementation = "eager"
    model: Any = getattr(module, f"{prefix}ForCausalLM")(config).eval()
    tensors = load_file(folder / "model.safetensors")
    trunk = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    model.load_state_dict(trunk)
    return Live(model.to(dtype), module, prefix, tensors)


def empty_cache(model: Live) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.model.config)
