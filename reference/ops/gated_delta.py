"""The gated delta rule, token by token, and its chunk form (specs qwen3_5 3.3, 3.4).

Shapes: query, key [T, Hv, Dk] (already normalised, scaled and repeated to the value heads), value [T, Hv, Dv],
decay (log, <= 0) and beta [T, Hv], state [Hv, Dk, Dv].
"""

import torch
from torch import Tensor


def gated_delta_step(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: decay, read, write the difference, read again -> output [Hv, Dv] and the new state."""
    state = state * torch.exp(decay)[:, None, None]
    memory = torch.einsum("hkv,hk->hv", state, key)
    delta = beta[:, None] * (value - memory)
    state = state + key[:, :, None] * delta[:, None, :]
    return torch.einsum("hkv,hk->hv", state, query), state


def gated_delta(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """All tokens in order: outputs [T, Hv, Dv] and the last state."""
    outputs = []
    for row in zip(query, key, value, decay, beta, strict=True):
        output, state = gated_delta_step(state, *row)
        outputs.append(output)
    return (torch.stack(outputs) if outputs else value), state


def gated_delta_chunk(
    state: Tensor, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """The same map in the form that prefill kernels use: one triangular system for the whole chunk."""
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    total, b = decay.T.cumsum(-1), beta.T[..., None]
    ratio = torch.exp(total[:, :, None] - total[:, None, :]).tril()
    system = torch.eye(k.shape[1], dtype=k.dtype) + (b * (k @ k.transpose(1, 2)) * ratio).tril(-1)
    fresh = torch.linalg.solve(system, b * v)
    carried = torch.linalg.solve(system, b * torch.exp(total)[..., None] * k)
    fresh = fresh - carried @ state
    outputs = (q * torch.exp(total)[..., None]) @ state + ((q @ k.transpose(1, 2)) * ratio) @ fresh
    last = total[:, -1:, None]
    moved = torch.exp(last) * state + (k * torch.exp(last - total[..., None])).transpose(1, 2) @ fresh
    return outputs.transpose(0, 1), moved
