"""The two mixers and the MLP of Qwen3.5 over steps of rows. Source: specs qwen3_5 2-4."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ft.fast.backends.base import Experts, Operations
from ft.fast.backends.torch_ops import l2_normalise, sigmoid, silu, softplus
from ft.fast.pools.linear_state import StagedLayer, StagedRows, StateShape
from ft.fast.pools.paged import KVLayer
from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.weights import (
    AttentionWeights,
    DenseWeights,
    GatedDeltaNetWeights,
    LayerWeights,
    MoEWeights,
)
from ft.reference.types import Step


@dataclass(frozen=True)
class Rows:
    """The layout of one step: flat rows are [N, ...], its B*R real ones first, padded to the row tile."""

    step: Step
    write_slots: Tensor
    cosine: Tensor
    sine: Tensor
    blocks: int

    def shaped(self, flat: Tensor) -> Tensor:
        """[N, ...] -> [B, R, ...]."""
        requests, rows = self.step.requests, self.step.rows
        return flat[: requests * rows].reshape(requests, rows, *flat.shape[1:])


class Rotary:
    """Cosine and sine of the interleaved three-axis rope (specs qwen3_5 2.4)."""

    def __init__(self, config: Config, device: torch.device) -> None:
        half = config.rotary_dims // 2
        index = torch.arange(half, device=device)
        exponent = index.to(torch.float32) * 2 / config.rotary_dims
        self.inverse = 1.0 / torch.pow(torch.tensor(config.rope_theta, device=device), exponent)
        _, height, width = config.mrope_section
        self.axis = torch.zeros(half, dtype=torch.int64, device=device)
        self.axis[(index % 3 == 1) & (index < 3 * height)] = 1
        self.axis[(index % 3 == 2) & (index < 3 * width)] = 2

    def __call__(self, rope_positions: Tensor) -> tuple[Tensor, Tensor]:
        """[3, B, R] -> two fp32 [B, R, 1, rotary/2]."""
        angles = rope_positions.permute(1, 2, 0)[..., self.axis].to(torch.float32) * self.inverse
        return torch.cos(angles)[:, :, None], torch.sin(angles)[:, :, None]


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first dims of [B, R, heads, D] in pairs (j, j + rotary/2), in fp32; the rest passes."""
    half = cosine.shape[-1]
    first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return torch.cat([turned.to(heads.dtype), heads[..., 2 * half :]], dim=-1)


class AttentionLayer:
    """Gated full attention over paged keys and values."""

    def __init__(self, config: Config, weights: AttentionWeights, operations: Operations) -> None:
        self.config = config
        self.weights = weights
        self.operations = operations

    def __call__(self, flat: Tensor, rows: Rows, kv: KVLayer) -> Tensor:
        """[N, H] -> [N, H]; writes the keys and values of the step's rows."""
        config, weights, ops = self.config, self.weights, self.operations
        joint = ops.linear(flat, weights.q).view(-1, config.query_heads, 2, config.head_dim)
        query = ops.rms_norm(joint[:, :, 0], weights.q_norm, config.rms_eps)
        key = ops.linear(flat, weights.k).view(-1, config.kv_heads, config.head_dim)
        key = ops.rms_norm(key, weights.k_norm, config.rms_eps)
        value = ops.linear(flat, weights.v).view(-1, config.kv_heads, config.head_dim)
        query = rotate(rows.shaped(query), rows.cosine, rows.sine)
        kv.keys[rows.write_slots] = rotate(rows.shaped(key), rows.cosine, rows.sine)
        kv.values[rows.write_slots] = rows.shaped(value)
        mixed = ops.attention(query, kv, rows.step, rows.blocks)
        mixed = ops.pad_rows(mixed.reshape(-1, config.query_heads * config.head_dim))
        gate = joint[:, :, 1].reshape(-1, config.query_heads * config.head_dim)
        return ops.linear(mixed * sigmoid(gate), weights.o)


class GatedDeltaNetLayer:
    """The linear mixer: causal conv, gated delta rule, gated norm."""

    def __init__(self, config: Config, weights: GatedDeltaNetWeights, operations: Operations) -> None:
        self.config = config
        self.weights = weights
        self.operations = operations
        self.decay_rate = -torch.exp(weights.a_log)

    def __call__(
        self, flat: Tensor, rows: Rows, recurrent: Tensor, conv: Tensor
    ) -> tuple[Tensor, StagedLayer]:
        """[N, H], live state [B, Hv, Dk, Dv] and [B, K-1, C] -> [N, H] and what a commit needs."""
        config, weights, ops = self.config, self.weights, self.operations
        inputs = torch.cat([conv, rows.shaped(ops.linear(flat, weights.qkv))], dim=1)
        query, staged = self._recurrence_inputs(inputs, flat, rows)
        if rows.step.prefill:
            mixed, chunk_state = ops.gated_delta_chunk(recurrent, staged, query, rows.step.valid)
        else:
            mixed, chunk_state = ops.gated_delta_rows(recurrent, staged, query), None
        heads = (-1, config.linear_value_heads, config.linear_value_dim)
        gate = ops.linear(flat, weights.z).view(heads)
        normed = ops.gated_norm(ops.pad_rows(mixed.reshape(heads)), gate, weights.norm, config.rms_eps)
        output = ops.linear(normed.reshape(flat.shape[0], -1), weights.out)
        return output, StagedLayer(staged, inputs, chunk_state)

    def _recurrence_inputs(self, inputs: Tensor, flat: Tensor, rows: Rows) -> tuple[Tensor, StagedRows]:
        config, weights, ops = self.config, self.weights, self.operations
        count = rows.step.rows
        taps = weights.conv.to(inputs.dtype)
        mixed = inputs[:, :count] * taps[:, 0]
        for tap in range(1, config.conv_taps):
            mixed = mixed + inputs[:, tap : tap + count] * taps[:, tap]
        mixed = silu(mixed).float()
        keys = config.linear_key_heads * config.linear_key_dim
        query, key, value = torch.split(mixed, [keys, keys, mixed.shape[-1] - 2 * keys], dim=-1)
        shape = (*mixed.shape[:2], config.linear_key_heads, config.linear_key_dim)
        decay = self.decay_rate * softplus(rows.shaped(ops.linear(flat, weights.a)).float() + weights.dt_bias)
        beta = sigmoid(rows.shaped(ops.linear(flat, weights.b)).float())
        value = value.reshape(*mixed.shape[:2], config.linear_value_heads, config.linear_value_dim)
        query = self._normalise(query.reshape(shape)) * config.linear_key_dim**-0.5
        return query, StagedRows(self._normalise(key.reshape(shape)), value, decay, beta)

    def _normalise(self, heads: Tensor) -> Tensor:
        """L2 norm of [B, R, Hk, Dk] row by row, so that its shape does not grow with R."""
        if heads.shape[1] == 1:
            return l2_normalise(heads)
        return torch.stack([l2_normalise(row) for row in heads.unbind(1)], dim=1)


def mlp(flat: Tensor, weights: DenseWeights | MoEWeights, config: Config, operations: Operations) -> Tensor:
    """[N, H] -> [N, H]."""
    if isinstance(weights, MoEWeights):
        return operations.experts(flat, experts(weights), config.experts_per_token)
    inner = silu(operations.linear(flat, weights.gate)) * operations.linear(flat, weights.up)
    return operations.linear(inner, weights.down)


def experts(weights: MoEWeights) -> Experts:
    """The family's expert tensors as a backend takes them."""
    shared = weights.shared
    return Experts(
        weights.router,
        weights.gate_up,
        weights.down,
        shared.gate,
        shared.up,
        shared.down,
        weights.shared_gate,
    )


def state_shape(config: Config) -> StateShape:
    return StateShape(
        config.linear_key_heads,
        config.linear_value_heads,
        config.linear_key_dim,
        config.linear_value_dim,
        config.conv_channels,
        config.conv_taps,
    )


@dataclass(frozen=True)
class Block:
    """One layer of the trunk or the draft."""

    weights: LayerWeights
    mixer: AttentionLayer | GatedDeltaNetLayer


def block(config: Config, weights: LayerWeights, operations: Operations) -> Block:
    if isinstance(weights.mixer, AttentionWeights):
        return Block(weights, AttentionLayer(config, weights.mixer, operations))
    return Block(weights, GatedDeltaNetLayer(config, weights.mixer, operations))
