"""Partial rotary embedding with three interleaved position axes (specs qwen3_5 2.3, 2.4)."""

import torch
from torch import Tensor


def axis_of_frequency(half: int, section: tuple[int, int, int]) -> Tensor:
    """int64 [half]: which of (t, h, w) turns frequency j."""
    axes = torch.zeros(half, dtype=torch.int64)
    for j in range(half):
        if j % 3 == 1 and j < 3 * section[1]:
            axes[j] = 1
        if j % 3 == 2 and j < 3 * section[2]:
            axes[j] = 2
    return axes


def angles(
    positions: Tensor, rotary: int, theta: float, section: tuple[int, int, int], dtype: torch.dtype
) -> Tensor:
    """Angles [T, rotary/2] of int64 positions [3, T]; inverse frequencies are fp32, as released engines have them."""
    half = rotary // 2
    exponent = torch.arange(0, rotary, 2, dtype=torch.int64).float() / rotary
    inverse = (1.0 / (theta**exponent)).to(dtype)
    chosen = positions.to(dtype)[axis_of_frequency(half, section)]
    return chosen.T * inverse


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Turn pairs (j, j + rotary/2) of [T, heads, D] by angle [T, rotary/2]; the other dims pass."""
    half = angle.shape[-1]
    cosine, sine = torch.cos(angle)[:, None], torch.sin(angle)[:, None]
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cosine - second * sine, second * cosine + first * sine, x[..., 2 * half :])
    return torch.cat(turned, dim=-1)
