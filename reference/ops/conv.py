"""Causal depthwise convolution over the last K inputs of each channel, then SiLU (specs qwen3_5 3.2)."""

import torch
from torch import Tensor


def causal_conv(inputs: Tensor, state: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """inputs [T, C], state [K-1, C] (the inputs before them), weight [C, K] -> outputs [T, C], new state.

    Tap K-1 multiplies the current input; the state holds inputs, not outputs.
    """
    taps = weight.shape[1]
    window = torch.cat([state, inputs])
    outputs = [(window[t : t + taps] * weight.T).sum(0) for t in range(inputs.shape[0])]
    mixed = torch.stack(outputs) if outputs else inputs
    return torch.nn.functional.silu(mixed), window[inputs.shape[0] :]
