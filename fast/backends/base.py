"""The operations a target is made of. A backend is one implementation of them all.

The rule of rows: in a decode or verify step an output row depends on its own input row and history only, to
the last bit, whatever B, R and the padding beside it are. `row_invariant` says whether a backend keeps it.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ft.fast.pools.linear_state import StagedRows
from ft.fast.pools.paged import KVLayer
from ft.reference.types import Step


@dataclass(frozen=True)
class Experts:
    """Routed experts beside one gated shared expert. router: [E, H]. gate_up: [E, 2*I, H], gate rows first.
    down: [E, H, I]. shared_gate_proj, shared_up: [S, H]. shared_down: [H, S]. shared_gate: [1, H]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_proj: Tensor
    shared_up: Tensor
    shared_down: Tensor
    shared_gate: Tensor


class Operations(Protocol):
    """Flat rows are [N, ...] with N a multiple of the row tile; `shape_rows` pads to it."""

    @property
    def row_invariant(self) -> bool: ...

    def pad_rows(self, rows: Tensor) -> Tensor:
        """[N, ...] to [N', ...], N' the next multiple of the row tile, zeros appended."""
        ...

    def linear(self, rows: Tensor, weight: Tensor) -> Tensor:
        """[N, in] x [out, in] -> [N, out]."""
        ...

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise the last axis of [N, ..., D] in fp32, times `weight` [D] fp32, back to the input dtype."""
        ...

    def gated_norm(self, rows: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """rms_norm(rows) * silu(gate) over [N, Hv, Dv]."""
        ...

    def attention(self, query: Tensor, kv: KVLayer, step: Step, blocks: int) -> Tensor:
        """query [B, R, nq, D] over the pages of each request up to each row's own position -> [B, R, nq, D].

        blocks: how many key blocks, counted from position 0, can hold a visible key of any request.
        """
        ...

    def gated_delta_rows(self, state: Tensor, staged: StagedRows, query: Tensor) -> Tensor:
        """Row-by-row recurrence from `state` [B, Hv, Dk, Dv], left as it was -> outputs fp32 [B, R, Hv, Dv]."""
        ...

    def gated_delta_commit(self, state: Tensor, staged: StagedRows, kept: Tensor) -> Tensor:
        """The state after exactly `kept` [B] of the staged rows, by the same additions as the rows form."""
        ...

    def gated_delta_chunk(
        self, state: Tensor, staged: StagedRows, query: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Chunk form for prefill: outputs [B, R, Hv, Dv] and the state after the valid rows."""
        ...

    def experts(self, rows: Tensor, weights: Experts, experts_per_token: int) -> Tensor:
        """Router, selected experts and the gated shared expert over [N, H] -> [N, H]."""
        ...
