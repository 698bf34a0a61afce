"""The Qwen3.5 trunk as it is defined: fp32, one request after the other, layer by layer (specs qwen3_5 2)."""

from collections import defaultdict
from functools import partial

import torch
from torch import Tensor

from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.layers import DeltaState, KeyValues, add_feed_forward, attend, delta
from ft.reference.families.qwen3_5.weights import AttentionWeights, GatedDeltaNetWeights, TargetWeights
from ft.reference.ops import rope
from ft.reference.ops.norm import centred_rms_norm
from ft.reference.state import RunningState, require_handlers
from ft.reference.types import Features, Step


class ReferenceTarget:
    """Implements protocol.Target. Weights are in the dtype that everything is computed in (weights.cast)."""

    def __init__(self, config: Config, weights: TargetWeights) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self.caches: dict[tuple[int, int], KeyValues] = defaultdict(self.empty_cache)
        self.states = {
            index: RunningState(
                f"gated delta state of layer {index}",
                self._empty_state,
                partial(self._advance, layer.mixer),
            )
            for index, layer in enumerate(weights.layers)
            if isinstance(layer.mixer, GatedDeltaNetWeights)
        }
        require_handlers(self.states.values())

    @property
    def vocabulary(self) -> int:
        return self.config.vocabulary

    def empty_cache(self) -> KeyValues:
        empty = torch.zeros(0, self.config.kv_heads, self.config.head_dim, dtype=self.dtype)
        return KeyValues(empty, empty)

    def _empty_state(self) -> DeltaState:
        config = self.config
        conv = torch.zeros(config.conv_taps - 1, config.conv_channels, dtype=self.dtype)
        shape = (config.linear_value_heads, config.linear_key_dim, config.linear_value_dim)
        return DeltaState(conv, torch.zeros(shape, dtype=self.dtype))

    def _advance(self, mixer: GatedDeltaNetWeights, rows: Tensor, state: DeltaState) -> DeltaState:
        return delta(rows, mixer, self.config, state)[1]

    def reset(self, slot: int) -> None:
        """State of an empty request."""
        for key in [key for key in self.caches if key[0] == slot]:
            del self.caches[key]
        for state in self.states.values():
            state.reset(slot)

    def angle(self, rope_positions: Tensor) -> Tensor:
        """Rotary angles [T, rotary/2] of int64 positions [3, T]."""
        config = self.config
        return rope.angles(
            rope_positions, config.rotary_dims, config.rope_theta, config.mrope_section, self.dtype
        )

    def forward(self, step: Step) -> Features:
        """Hidden rows; those beyond `valid` are zero. ValueError names a slot that two requests share."""
        slots = step.slots.tolist()
        shared = {
            slot for slot, count in zip(slots, step.valid, strict=True) if count and slots.count(slot) > 1
        }
        if shared:
            raise ValueError(
                f"slot {min(shared)} stands for two requests of a step; every request needs its own"
            )
        hidden = torch.zeros(step.requests, step.rows, self.config.hidden, dtype=self.dtype)
        taps = {layer: torch.zeros_like(hidden) for layer in step.taps}
        for index in range(step.requests):
            count = int(step.valid[index])
            final, outputs = self._rows(step, index, count)
            hidden[index, :count] = final
            for layer in step.taps:
                taps[layer][index, :count] = outputs[layer]
        return Features(hidden, taps)

    def _rows(self, step: Step, index: int, count: int) -> tuple[Tensor, list[Tensor]]:
        slot, config = int(step.slots[index]), self.config
        positions = step.positions[index, :count]
        angle = self.angle(step.rope_positions[:, index, :count])
        x = self.weights.embedding[step.token_ids[index, :count]]
        outputs = []
        for number, layer in enumerate(self.weights.layers):
            normed = centred_rms_norm(x, layer.input_norm, config.rms_eps)
            if isinstance(layer.mixer, AttentionWeights):
                cache = self.caches[slot, number]
                mixed = attend(normed, layer.mixer, config, cache, positions, angle) if count else normed
            else:
                state = self.states[number]
                mixed, _ = delta(normed, layer.mixer, config, state.read(slot)) if count else (normed, None)
                state.stage(slot, normed)
            x = add_feed_forward(x + mixed, layer, config)
            outputs.append(x)
        return centred_rms_norm(x, self.weights.norm, config.rms_eps), outputs

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weights.head.T

    def commit(self, step: Step, kept: Tensor) -> None:
        """Move the running states to exactly `kept` rows; keys and values beyond them are overwritten later."""
        for state in self.states.values():
            state.commit(step, kept)

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Every state of a request by name, over its committed positions."""
        named: dict[str, Tensor] = {}
        for layer in range(self.config.layers):
            if layer in self.states:
                state = self.states[layer].read(slot)
                named[f"layer{layer}.recurrent"], named[f"layer{layer}.conv"] = state.recurrent, state.conv
            else:
                cache = self.caches[slot, layer]
                named[f"layer{layer}.keys"] = cache.keys[:committed]
                named[f"layer{layer}.values"] = cache.values[:committed]
        return named
