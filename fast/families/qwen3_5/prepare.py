"""Stored tensors to what the engine multiplies with: model dtype for matrices, fp32 1 + w for norms."""

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ft.reference.families.qwen3_5.weights import (
    AttentionWeights,
    DenseWeights,
    GatedDeltaNetWeights,
    LayerWeights,
    MoEWeights,
    MTPWeights,
    TargetWeights,
)

Weights = TypeVar("Weights", AttentionWeights, DenseWeights, GatedDeltaNetWeights, MoEWeights)


class Preparation:
    """Moves tensors to one device and dtype; the same stored tensor gives the same prepared one."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def matrix(self, stored: Tensor) -> Tensor:
        return stored.to(self.device, self.dtype).contiguous()

    def plain(self, stored: Tensor) -> Tensor:
        return stored.to(self.device, torch.float32)

    def norm(self, stored: Tensor) -> Tensor:
        """The weight of a 1 + w norm."""
        return 1.0 + self.plain(stored)

    def target(self, stored: TargetWeights) -> TargetWeights:
        embedding = self.matrix(stored.embedding)
        tied = stored.head is stored.embedding
        return TargetWeights(
            embedding=embedding,
            layers=tuple(self.layer(layer) for layer in stored.layers),
            norm=self.norm(stored.norm),
            head=embedding if tied else self.matrix(stored.head),
        )

    def mtp(self, stored: MTPWeights) -> MTPWeights:
        return MTPWeights(
            fc=self.matrix(stored.fc),
            embedding_norm=self.norm(stored.embedding_norm),
            hidden_norm=self.norm(stored.hidden_norm),
            layer=self.layer(stored.layer),
            norm=self.norm(stored.norm),
        )

    def layer(self, stored: LayerWeights) -> LayerWeights:
        mixer, mlp = stored.mixer, stored.mlp
        return LayerWeights(
            input_norm=self.norm(stored.input_norm),
            mixer=self._attention(mixer) if isinstance(mixer, AttentionWeights) else self._delta(mixer),
            post_attention_norm=self.norm(stored.post_attention_norm),
            mlp=self._dense(mlp) if isinstance(mlp, DenseWeights) else self._experts(mlp),
        )

    def _matrices(self, stored: Weights, names: tuple[str, ...]) -> Weights:
        converted: dict[str, Any] = {name: self.matrix(getattr(stored, name)) for name in names}
        return replace(stored, **converted)

    def _attention(self, stored: AttentionWeights) -> AttentionWeights:
        prepared = self._matrices(stored, ("q", "k", "v", "o"))
        return replace(prepared, q_norm=self.norm(stored.q_norm), k_norm=self.norm(stored.k_norm))

    def _delta(self, stored: GatedDeltaNetWeights) -> GatedDeltaNetWeights:
        prepared = self._matrices(stored, ("qkv", "z", "b", "a", "conv", "out"))
        return replace(
            prepared,
            a_log=self.plain(stored.a_log),
            dt_bias=self.plain(stored.dt_bias),
            norm=self.plain(stored.norm),
        )

    def _dense(self, stored: DenseWeights) -> DenseWeights:
        return self._matrices(stored, tuple(item.name for item in fields(DenseWeights)))

    def _experts(self, stored: MoEWeights) -> MoEWeights:
        prepared = self._matrices(stored, ("router", "gate_up", "down", "shared_gate"))
        return replace(prepared, shared=self._dense(stored.shared))
