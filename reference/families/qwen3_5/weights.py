"""Tensors of the Qwen3.5 family by role, in their stored dtypes. Linear weights are [out, in], no bias.

Source: specs qwen3_5 1.4, 4 and 5.1.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionWeights:
    """q: [2*nq*D, H], per head first the query then its gate. k, v: [nkv*D, H]. o: [H, nq*D]."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    q_norm: Tensor
    k_norm: Tensor


@dataclass(frozen=True)
class GatedDeltaNetWeights:
    """qkv: [C, H], rows q, k, v. z: [Hv*Dv, H]. b, a: [Hv, H]. conv: [C, K]. norm: [Dv], plain."""

    qkv: Tensor
    z: Tensor
    b: Tensor
    a: Tensor
    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    out: Tensor


@dataclass(frozen=True)
class DenseWeights:
    """gate, up: [F, H]. down: [H, F]."""

    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class MoEWeights:
    """router: [E, H]. gate_up: [E, 2*I, H], gate rows first. down: [E, H, I]. shared_gate: [1, H]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared: DenseWeights
    shared_gate: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One block. The two norms are of the 1 + w kind."""

    input_norm: Tensor
    mixer: AttentionWeights | GatedDeltaNetWeights
    post_attention_norm: Tensor
    mlp: DenseWeights | MoEWeights


@dataclass(frozen=True)
class TargetWeights:
    """embedding, head: [V, H] (the same tensor when tied). norm: [H], 1 + w."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


@dataclass(frozen=True)
class MTPWeights:
    """fc: [H, 2*H], embedding half first. The three norms are of the 1 + w kind."""

    fc: Tensor
    embedding_norm: Tensor
    hidden_norm: Tensor
    layer: LayerWeights
    norm: Tensor
