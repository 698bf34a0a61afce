"""The Qwen3.5 trunk over paged keys and values and slot states. Implements reference.protocol.Target."""

from torch import Tensor

from ft.fast.backends.base import Operations
from ft.fast.families.qwen3_5.layers import (
    AttentionLayer,
    Block,
    Rotary,
    Rows,
    block,
    mlp,
    state_shape,
)
from ft.fast.pools.linear_state import LinearStatePool, StagedLayer
from ft.fast.pools.paged import PagedKV, PageTable
from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.weights import TargetWeights
from ft.reference.types import Features, Step


class Qwen35Target:
    """Weights and state of one trunk. Weights are prepared (families.qwen3_5.prepare)."""

    def __init__(
        self, config: Config, weights: TargetWeights, operations: Operations, table: PageTable, slots: int
    ) -> None:
        self.config = config
        self.weights = weights
        self.operations = operations
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self.rotary = Rotary(config, device)
        self.blocks = [block(config, layer, operations) for layer in weights.layers]
        full = [layer for layer in range(config.layers) if config.is_full_attention(layer)]
        linear = [layer for layer in range(config.layers) if not config.is_full_attention(layer)]
        self.place = {layer: index for group in (full, linear) for index, layer in enumerate(group)}
        self.kv = PagedKV(len(full), config.kv_heads, config.head_dim, table, dtype, device)
        self.states = LinearStatePool(len(linear), slots, state_shape(config), dtype, device)
        self._staged: dict[int, StagedLayer] = {}

    @property
    def vocabulary(self) -> int:
        return self.config.vocabulary

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new request."""
        self.states.reset(slot)

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Every per-request state by name, over the committed positions: keys and values [committed, nkv, D],
        recurrent [Hv, Dk, Dv], conv [K-1, C]."""
        named: dict[str, Tensor] = {}
        for layer, place in self.place.items():
            if self.config.is_full_attention(layer):
                keys, values = self.kv.committed(place, slot, committed)
                named[f"layer{layer}.keys"], named[f"layer{layer}.values"] = keys, values
            else:
                named[f"layer{layer}.recurrent"] = self.states.recurrent[place, slot]
                named[f"layer{layer}.conv"] = self.states.conv[place, slot]
        return named

    def rows(self, step: Step) -> Rows:
        cosine, sine = self.rotary(step.rope_positions)
        write = self.kv.table.write_slots(step.slots, step.positions, step.valid)
        return Rows(step, write, cosine, sine, self.kv.table.key_blocks(step.bound))

    def forward(self, step: Step) -> Features:
        ops, config = self.operations, self.config
        rows = self.rows(step)
        flat = ops.pad_rows(self.weights.embedding[step.token_ids.reshape(-1)])
        taps: dict[int, Tensor] = {}
        self._staged = {}
        for layer, item in enumerate(self.blocks):
            mixed = self._mix(layer, item, ops.rms_norm(flat, item.weights.input_norm, config.rms_eps), rows)
            flat = flat + mixed
            normed = ops.rms_norm(flat, item.weights.post_attention_norm, config.rms_eps)
            flat = flat + mlp(normed, item.weights.mlp, config, ops)
            if layer in step.taps:
                taps[layer] = rows.shaped(flat)
        final = ops.rms_norm(flat, self.weights.norm, config.rms_eps)
        return Features(rows.shaped(final), taps)

    def _mix(self, layer: int, item: Block, flat: Tensor, rows: Rows) -> Tensor:
        place = self.place[layer]
        if isinstance(item.mixer, AttentionLayer):
            return item.mixer(flat, rows, self.kv.layer(place))
        slots = rows.step.slots
        output, self._staged[layer] = item.mixer(
            flat, rows, self.states.recurrent[place, slots], self.states.conv[place, slots]
        )
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [..., V] of [..., H], over the vocabulary's real rows."""
        flat = self.operations.pad_rows(hidden.reshape(-1, hidden.shape[-1]))
        logits = self.operations.linear(flat, self.weights.head).float()
        return logits[: hidden.shape[:-1].numel()].view(*hidden.shape[:-1], -1)

    def commit(self, step: Step, kept: Tensor) -> None:
        for layer, staged in self._staged.items():
            place = self.place[layer]
            self.states.commit_conv(place, step.slots, staged.conv_inputs, kept)
            if staged.chunk_state is not None:
                moved = staged.chunk_state
            else:
                live = self.states.recurrent[place, step.slots]
                moved = self.operations.gated_delta_commit(live, staged.rows, kept)
            self.states.commit_recurrent(place, step.slots, moved)
        self._staged = {}
