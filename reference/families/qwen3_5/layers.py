"""The two mixers and the MLP of Qwen3.5 over the rows of one request, fp32 by default (specs qwen3_5 2-4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.weights import (
    AttentionWeights,
    DenseWeights,
    GatedDeltaNetWeights,
    LayerWeights,
    MoEWeights,
)
from ft.reference.ops import rope
from ft.reference.ops.attention import attention
from ft.reference.ops.conv import causal_conv
from ft.reference.ops.gated_delta import gated_delta
from ft.reference.ops.mlp import gated_mlp
from ft.reference.ops.moe import experts
from ft.reference.ops.norm import centred_rms_norm, gated_rms_norm, l2_norm


@dataclass
class KeyValues:
    """Keys and values of one request and layer, [S, nkv, D]; row s stands at position s."""

    keys: Tensor
    values: Tensor

    def write(self, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put rows at consecutive positions and forget what stood there or beyond. ValueError names a gap."""
        start, written = int(positions[0]), self.keys.shape[0]
        if start > written or not torch.equal(positions, start + torch.arange(len(positions))):
            raise ValueError(
                f"rows at positions {positions.tolist()} after {written} written ones; "
                "rows stand side by side and leave no gap"
            )
        self.keys = torch.cat([self.keys[:start], keys])
        self.values = torch.cat([self.values[:start], values])


@dataclass(frozen=True)
class DeltaState:
    """Running sums of one request and layer: conv inputs [K-1, C], recurrent [Hv, Dk, Dv]."""

    conv: Tensor
    recurrent: Tensor


def attend(
    x: Tensor, weights: AttentionWeights, config: Config, cache: KeyValues, positions: Tensor, angle: Tensor
) -> Tensor:
    """Gated attention of rows [T, H] at consecutive `positions`; their keys and values go into the cache."""
    rows = x.shape[0]
    joint = (x @ weights.q.T).view(rows, config.query_heads, 2 * config.head_dim)
    query, gate = joint[..., : config.head_dim], joint[..., config.head_dim :]
    key = (x @ weights.k.T).view(rows, config.kv_heads, config.head_dim)
    value = (x @ weights.v.T).view(rows, config.kv_heads, config.head_dim)
    query = rope.rotate(centred_rms_norm(query, weights.q_norm, config.rms_eps), angle)
    key = rope.rotate(centred_rms_norm(key, weights.k_norm, config.rms_eps), angle)
    cache.write(positions, key, value)
    mixed = attention(query, cache.keys, cache.values, positions)
    return (mixed * torch.sigmoid(gate)).reshape(rows, -1) @ weights.o.T


def delta(
    x: Tensor, weights: GatedDeltaNetWeights, config: Config, state: DeltaState
) -> tuple[Tensor, DeltaState]:
    """GatedDeltaNet over rows [T, H] from `state`: outputs, and the state after all of them."""
    rows, keys = x.shape[0], config.linear_key_heads * config.linear_key_dim
    mixed, conv = causal_conv(x @ weights.qkv.T, state.conv, weights.conv)
    query, key, value = mixed[:, :keys], mixed[:, keys : 2 * keys], mixed[:, 2 * keys :]
    shape = (rows, config.linear_key_heads, config.linear_key_dim)
    repeat = config.linear_value_heads // config.linear_key_heads
    query = l2_norm(query.reshape(shape)).repeat_interleave(repeat, dim=1) * config.linear_key_dim**-0.5
    key = l2_norm(key.reshape(shape)).repeat_interleave(repeat, dim=1)
    heads = (rows, config.linear_value_heads, config.linear_value_dim)
    decay = -torch.exp(weights.a_log) * torch.nn.functional.softplus(x @ weights.a.T + weights.dt_bias)
    beta = torch.sigmoid(x @ weights.b.T)
    output, recurrent = gated_delta(state.recurrent, query, key, value.reshape(heads), decay, beta)
    gate = (x @ weights.z.T).view(heads)
    normed = gated_rms_norm(output, gate, weights.norm, config.rms_eps)
    return normed.reshape(rows, -1) @ weights.out.T, DeltaState(conv, recurrent)


def feed_forward(x: Tensor, weights: DenseWeights | MoEWeights, config: Config) -> Tensor:
    """The MLP of a layer over [T, H]."""
    if isinstance(weights, DenseWeights):
        return gated_mlp(x, weights.gate, weights.up, weights.down)
    routed = experts(x, weights.router, weights.gate_up, weights.down, config.experts_per_token)
    shared = gated_mlp(x, weights.shared.gate, weights.shared.up, weights.shared.down)
    return routed + torch.sigmoid(x @ weights.shared_gate.T) * shared


def add_feed_forward(x: Tensor, layer: LayerWeights, config: Config) -> Tensor:
    """x + mlp(norm x), the second half of a block."""
    normed = centred_rms_norm(x, layer.post_attention_norm, config.rms_eps)
    return x + feed_forward(normed, layer.mlp, config)
