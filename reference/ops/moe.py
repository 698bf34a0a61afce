"""Routed experts beside one gated shared expert (specs qwen3_5 4)."""

import torch
from torch import Tensor

from ft.reference.ops.mlp import gated_mlp


def route(x: Tensor, router: Tensor, experts_per_token: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, then the largest, renormalised: weights and int64 ids [T, k]."""
    scores = torch.softmax(x @ router.T, dim=-1)
    chosen, ids = torch.sort(scores, dim=-1, descending=True, stable=True)
    chosen, ids = chosen[:, :experts_per_token], ids[:, :experts_per_token]
    return chosen / chosen.sum(-1, keepdim=True), ids


def experts(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, experts_per_token: int) -> Tensor:
    """x [T, H], gate_up [E, 2I, H], down [E, H, I] -> [T, H]."""
    weights, ids = route(x, router, experts_per_token)
    outputs = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            gate, up = gate_up[expert].chunk(2)
            outputs[token] += weight * gated_mlp(x[token : token + 1], gate, up, down[expert])[0]
    return outputs
