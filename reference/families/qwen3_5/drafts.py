"""The MTP head as it is defined: slot i pairs the target's final hidden at i with token i+1 (specs qwen3_5 5)."""

from collections import defaultdict

import torch
from torch import Tensor

from ft.reference.families.qwen3_5.layers import KeyValues, add_feed_forward, attend
from ft.reference.families.qwen3_5.target import ReferenceTarget
from ft.reference.families.qwen3_5.weights import AttentionWeights, MTPWeights
from ft.reference.ops.norm import centred_rms_norm


class MTPDraft:
    """Implements proposers.mtp.DraftNetwork, one request at a time. Embedding and head are the target's."""

    def __init__(self, weights: MTPWeights, target: ReferenceTarget) -> None:
        self.weights = weights
        self.target = target
        self.caches: dict[int, KeyValues] = defaultdict(target.empty_cache)

    def reset(self, slot: int) -> None:
        self.caches.pop(slot, None)

    def forward(
        self, slot: int, ids: Tensor, hidden: Tensor, positions: Tensor, rope_positions: Tensor
    ) -> Tensor:
        """Tokens int64 [T] after the rows whose hidden [T, H] they pair with -> [T, H] after the MTP norm."""
        target, weights = self.target, self.weights
        config = target.config
        embedded = centred_rms_norm(target.weights.embedding[ids], weights.embedding_norm, config.rms_eps)
        incoming = centred_rms_norm(hidden, weights.hidden_norm, config.rms_eps)
        x = torch.cat([embedded, incoming], dim=-1) @ weights.fc.T
        mixer = weights.layer.mixer
        assert isinstance(mixer, AttentionWeights), "an MTP block is full attention"
        normed = centred_rms_norm(x, weights.layer.input_norm, config.rms_eps)
        x = x + attend(normed, mixer, config, self.caches[slot], positions, target.angle(rope_positions))
        x = add_feed_forward(x, weights.layer, config)
        return centred_rms_norm(x, weights.norm, config.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.target.logits(hidden)

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Draft keys and values of a request's committed slots."""
        cache = self.caches[slot]
        return {"draft.keys": cache.keys[:committed], "draft.values": cache.values[:committed]}
