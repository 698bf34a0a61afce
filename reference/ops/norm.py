"""The three norms of Qwen3.5 (specs qwen3_5 2.2, 3.4, 3.5). All work in the dtype of their input."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean x^2 + eps) * weight over the last axis: the plain kind."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def centred_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The zero-centred kind: the stored weight is an offset from one."""
    return rms_norm(x, 1.0 + weight, eps)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm first, then times silu(gate)."""
    return rms_norm(x, weight, eps) * torch.nn.functional.silu(gate)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis; eps stands on the sum."""
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + eps)
