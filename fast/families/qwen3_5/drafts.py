"""The MTP head of Qwen3.5: one gated full-attention block over its own keys and values.

Slot i pairs the target's final hidden at i with token i+1 and stands at position i (specs qwen3_5 5).
"""

import torch
from torch import Tensor

from ft.fast.families.qwen3_5.layers import AttentionLayer, block, mlp
from ft.fast.families.qwen3_5.target import Qwen35Target
from ft.fast.pools.paged import PagedKV
from ft.reference.families.qwen3_5.weights import MTPWeights
from ft.reference.types import Step


class MTPDraft:
    """Implements spec.mtp.DraftNetwork. Embedding, head and page table are the target's."""

    def __init__(self, weights: MTPWeights, target: Qwen35Target) -> None:
        self.weights = weights
        self.target = target
        config, table = target.config, target.kv.table
        self.block = block(config, weights.layer, target.operations)
        embedding = target.weights.embedding
        self.kv = PagedKV(1, config.kv_heads, config.head_dim, table, embedding.dtype, embedding.device)

    @property
    def hidden_size(self) -> int:
        return self.target.config.hidden

    def forward(self, step: Step, hidden: Tensor) -> Tensor:
        """Rows (token i+1, hidden of i) at positions i: [B, R, H] -> [B, R, H] after the MTP norm."""
        target, weights = self.target, self.weights
        ops, eps = target.operations, target.config.rms_eps
        rows = target.rows(step)
        embedded = ops.pad_rows(target.weights.embedding[step.token_ids.reshape(-1)])
        incoming = ops.pad_rows(hidden.reshape(-1, hidden.shape[-1]))
        joined = [
            ops.rms_norm(embedded, weights.embedding_norm, eps),
            ops.rms_norm(incoming, weights.hidden_norm, eps),
        ]
        flat = ops.linear(torch.cat(joined, dim=-1), weights.fc)
        mixer = self.block.mixer
        assert isinstance(mixer, AttentionLayer), "an MTP block is full attention"
        layer = self.block.weights
        flat = flat + mixer(ops.rms_norm(flat, layer.input_norm, eps), rows, self.kv.layer(0))
        flat = flat + mlp(ops.rms_norm(flat, layer.post_attention_norm, eps), layer.mlp, target.config, ops)
        return rows.shaped(ops.rms_norm(flat, weights.norm, eps))

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Draft keys and values [committed, nkv, D] of a request."""
        keys, values = self.kv.committed(0, slot, committed)
        return {"draft.keys": keys, "draft.values": values}

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [..., V] through the target's head."""
        return self.target.logits(hidden)
