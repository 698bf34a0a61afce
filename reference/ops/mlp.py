"""The dense gated MLP (specs qwen3_5 4)."""

import torch
from torch import Tensor


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """down(silu(gate x) * up x) over [T, H]; weights are [out, in]."""
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
