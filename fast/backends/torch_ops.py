"""The operations in plain torch, for any device.

Rows are computed in tiles of a fixed number of rows, so that every matrix product and every reduction has a
shape that does not depend on how many rows stand beside a row; recurrences walk row by row.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ft.fast.backends.base import Experts
from ft.fast.pools.linear_state import StagedRows
from ft.fast.pools.paged import KEY_BLOCK, KVLayer
from ft.reference.types import Step

ROW_TILE = 16
"""Rows of one matrix product; also the tile of a Hopper matrix instruction in the kernels to come."""


class TorchOperations:
    """Implements backends.base.Operations."""

    row_invariant = True

    def __init__(self, tile: int = ROW_TILE) -> None:
        self.tile = tile

    def pad_rows(self, rows: Tensor) -> Tensor:
        missing = -rows.shape[0] % self.tile
        return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows

    def _by_tile(self, compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        if rows.shape[0] == self.tile:
            return compute(rows)
        return torch.cat([compute(tile) for tile in torch.split(rows, self.tile)])

    def linear(self, rows: Tensor, weight: Tensor) -> Tensor:
        return self._by_tile(lambda tile: functional.linear(tile, weight), rows)

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._by_tile(lambda tile: _normalise(tile, eps).mul(weight).to(rows.dtype), rows)

    def gated_norm(self, rows: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed = self._by_tile(lambda tile: _normalise(tile, eps).mul(weight), rows)
        return (normed * silu(gate.float())).to(gate.dtype)

    def attention(self, query: Tensor, kv: KVLayer, step: Step, blocks: int) -> Tensor:
        requests, rows, heads, dim = query.shape
        kv_heads = kv.keys.shape[1]
        missing = -rows % ROW_TILE
        padded = functional.pad(query.float(), (0, 0, 0, 0, 0, missing)) * dim**-0.5
        width = rows + missing
        grouped = padded.view(requests, width, kv_heads, heads // kv_heads, dim).permute(0, 2, 3, 1, 4)
        grouped = grouped.reshape(requests * kv_heads, heads // kv_heads * width, dim)
        positions = functional.pad(step.positions, (0, missing))
        last = step.positions[:, :1] + step.valid[:, None] - 1
        merged = _merge_blocks(grouped, positions, last, kv, step.slots, blocks)
        merged = merged.view(requests, kv_heads, heads // kv_heads, width, dim).permute(0, 3, 1, 2, 4)
        return merged.reshape(requests, width, heads, dim)[:, :rows].to(query.dtype)

    def gated_delta_rows(self, state: Tensor, staged: StagedRows, query: Tensor) -> Tensor:
        repeat = state.shape[1] // query.shape[2]
        outputs = []
        for row in range(query.shape[1]):
            state = _advance(state, staged, row)
            heads = query[:, row].repeat_interleave(repeat, dim=1)
            outputs.append((state * heads[..., None]).sum(-2))
        return torch.stack(outputs, dim=1)

    def gated_delta_commit(self, state: Tensor, staged: StagedRows, kept: Tensor) -> Tensor:
        for row in range(staged.key.shape[1]):
            keep = (row < kept)[:, None, None, None]
            state = torch.where(keep, _advance(state, staged, row), state)
        return state

    def gated_delta_chunk(
        self, state: Tensor, staged: StagedRows, query: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        real = (torch.arange(query.shape[1], device=valid.device) < valid[:, None])[..., None]
        repeat = state.shape[1] // query.shape[2]
        # A product with zero does not stop a NaN that a padding row may hold, so its rows are replaced.
        key = torch.where(real[..., None], staged.key, 0.0).repeat_interleave(repeat, dim=2).transpose(1, 2)
        heads = query.repeat_interleave(repeat, dim=2).transpose(1, 2)
        value = torch.where(real[..., None], staged.value, 0.0).transpose(1, 2)
        beta = torch.where(real, staged.beta, 0.0).transpose(1, 2)[..., None]
        total = torch.where(real, staged.decay, 0.0).transpose(1, 2).cumsum(-1)
        return _solve_chunk(state, heads, key, value, beta, total)

    def experts(self, rows: Tensor, weights: Experts, experts_per_token: int) -> Tensor:
        return self._by_tile(lambda tile: _experts(tile, weights, experts_per_token), rows)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), from operations whose vector tails round like their bodies."""
    return 1 / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), linear above 20 (specs qwen3_5 3.3)."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20.0))))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), by the same operations."""
    return x / (1 + torch.exp(-x))


def l2_normalise(x: Tensor) -> Tensor:
    """x / sqrt(sum x^2 + 1e-6) over the last axis (specs qwen3_5 3.4)."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _normalise(rows: Tensor, eps: float) -> Tensor:
    wide = rows.float()
    return wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)


def _merge_blocks(
    query: Tensor, positions: Tensor, last: Tensor, kv: KVLayer, slots: Tensor, blocks: int
) -> Tensor:
    """Online softmax over key blocks in position order: query [B*nkv, G*R, D] -> [B*nkv, G*R, D] fp32.

    last: [B, 1], the last position that holds a written row; values beyond it never enter a product.
    """
    kv_heads, dim = kv.keys.shape[1:]
    width = positions.shape[1]
    group = query.shape[1] // width
    peak = query.new_full((*query.shape[:2], 1), float("-inf"))
    mass = query.new_zeros(*query.shape[:2], 1)
    total = torch.zeros_like(query)
    for block in range(blocks):
        index = kv.pages.block_slots(slots, block)
        keys = kv.keys[index].float().transpose(1, 2).reshape(-1, KEY_BLOCK, dim)
        values = kv.values[index].float()
        place = torch.arange(block * KEY_BLOCK, (block + 1) * KEY_BLOCK, device=query.device)
        seen = place <= positions[..., None]
        used = (place <= last)[..., None, None]
        values = torch.where(used, values, 0.0).transpose(1, 2).reshape(-1, KEY_BLOCK, dim)
        mask = seen[:, None, None].expand(-1, kv_heads, group, -1, -1).reshape(*query.shape[:2], KEY_BLOCK)
        scores = (query @ keys.transpose(1, 2)).masked_fill(~mask, float("-inf"))
        peak_now = torch.maximum(peak, scores.amax(-1, keepdim=True))
        weight = torch.exp(scores - peak_now)
        scale = torch.exp(peak - peak_now)
        mass = mass * scale + weight.sum(-1, keepdim=True)
        total = total * scale + weight @ values
        peak = peak_now
    return total / mass


def _advance(state: Tensor, staged: StagedRows, row: int) -> Tensor:
    """One token of the recurrence for every request: [B, Hv, Dk, Dv] -> the same (specs qwen3_5 3.4)."""
    repeat = state.shape[1] // staged.key.shape[2]
    key = staged.key[:, row].repeat_interleave(repeat, dim=1)[..., None]
    state = state * torch.exp(staged.decay[:, row])[..., None, None]
    read = (state * key).sum(-2)
    delta = (staged.value[:, row] - read) * staged.beta[:, row][..., None]
    return state + key * delta[..., None, :]


def _solve_chunk(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """Chunk form over [B, Hv, R, ...]; total: cumulative log decay [B, Hv, R] (specs qwen3_5 3.4)."""
    rows = key.shape[2]
    lower = torch.ones(rows, rows, dtype=torch.bool, device=key.device).tril()
    gap = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf"))
    decay = torch.exp(gap)
    system = (beta * (key @ key.transpose(-1, -2)) * decay).tril(-1)
    system = system + torch.eye(rows, device=key.device, dtype=key.dtype)
    gain = torch.exp(total)[..., None]
    right = torch.cat([beta * value, beta * gain * key], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh = solved[..., : value.shape[-1]] - solved[..., value.shape[-1] :] @ state
    outputs = (query * gain) @ state + (query @ key.transpose(-1, -2) * decay) @ fresh
    last = total[..., -1:]
    left = torch.exp(last - total)[..., None] * key
    moved = torch.exp(last)[..., None] * state + left.transpose(-1, -2) @ fresh
    return outputs.transpose(1, 2), moved


def _experts(rows: Tensor, weights: Experts, experts_per_token: int) -> Tensor:
    """All experts on one tile, weighted by the router; an unselected expert adds an exact zero."""
    scores = torch.softmax(functional.linear(rows, weights.router).float(), dim=-1)
    chosen, index = torch.topk(scores, experts_per_token, dim=-1)
    gates = torch.zeros_like(scores).scatter(-1, index, chosen / chosen.sum(-1, keepdim=True))
    gates = gates.to(rows.dtype)
    total = torch.zeros_like(rows)
    for expert in range(weights.down.shape[0]):
        gate, up = functional.linear(rows, weights.gate_up[expert]).chunk(2, dim=-1)
        output = functional.linear(silu(gate) * up, weights.down[expert])
        total = total + torch.where(gates[:, expert, None] > 0, output * gates[:, expert, None], 0.0)
    gate = silu(functional.linear(rows, weights.shared_gate_proj))
    inner = gate * functional.linear(rows, weights.shared_up)
    shared_gate = sigmoid((rows * weights.shared_gate).sum(-1, keepdim=True))
    return total + shared_gate * functional.linear(inner, weights.shared_down)
