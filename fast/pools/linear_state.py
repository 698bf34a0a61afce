"""Recurrent and convolution state of GatedDeltaNet layers: live per request slot, and the staged rows of a step.

A forward reads live state and stages what its rows would change; `commit` moves the live state to exactly the
rows kept. Source: specs qwen3_5 7.3 (minimal replay) and 7.5.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StateShape:
    """Sizes of one GatedDeltaNet layer: heads Hk and Hv, dims Dk and Dv, C conv channels, K taps."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    channels: int
    taps: int


@dataclass(frozen=True)
class StagedRows:
    """Inputs of the recurrence for R rows, fp32: key, normalised, [B, R, Hk, Dk]; value [B, R, Hv, Dv];
    log decay and beta [B, R, Hv]."""

    key: Tensor
    value: Tensor
    decay: Tensor
    beta: Tensor


@dataclass(frozen=True)
class StagedLayer:
    """What one layer staged: its recurrence rows, its conv inputs [B, K-1+R, C] with the live columns in
    front, and for a prefill the state [B, Hv, Dk, Dv] after the valid rows."""

    rows: StagedRows
    conv_inputs: Tensor
    chunk_state: Tensor | None


class LinearStatePool:
    """Live state of all linear layers: recurrent fp32 [L, slots+1, Hv, Dk, Dv], conv [L, slots+1, K-1, C].

    The last slot is the sink of padding rows: it is read, and never moves.
    """

    name = "gated_delta"

    def __init__(
        self, layers: int, slots: int, shape: StateShape, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.recurrent = torch.zeros(
            layers, slots + 1, shape.value_heads, shape.key_dim, shape.value_dim, device=device
        )
        self.conv = torch.zeros(layers, slots + 1, shape.taps - 1, shape.channels, dtype=dtype, device=device)

    def reset(self, slot: int) -> None:
        """State of an empty request: zeros."""
        self.recurrent[:, slot] = 0
        self.conv[:, slot] = 0

    def commit_conv(self, layer: int, slots: Tensor, conv_inputs: Tensor, kept: Tensor) -> None:
        """The K-1 columns before row `kept` [B] become the live conv state."""
        columns = torch.arange(self.shape.taps - 1, device=kept.device)
        index = (kept[:, None] + columns)[:, :, None].expand(-1, -1, conv_inputs.shape[2])
        self.conv[layer, slots] = torch.gather(conv_inputs, 1, index)

    def commit_recurrent(self, layer: int, slots: Tensor, state: Tensor) -> None:
        self.recurrent[layer, slots] = state
