"""Verification of drafts in few launches: a CUDA graph can capture the call, nothing in it waits for the host.

Letters: B requests, R = k + 1 rows a request, V vocabulary, k drafts, K candidates a draft. Draft r is judged by row
r, whose token stands at positions + r. Every sum of masses is one of integers, and every row is worked on by
programs of its own, so the bits of a row depend on that row alone.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from ft.kernels.verify_accept import accept_kernel, drafts_kernel
from ft.kernels.verify_cut import cut_kernel, rank_kernel, slow_kernel
from ft.kernels.verify_final import draw_kernel, sums_kernel
from ft.kernels.verify_noise import couple_kernel, noise_kernel
from ft.kernels.verify_space import CHUNK, Workspace, workspace
from ft.kernels.verify_tiles import masses_kernel, rows_kernel, tiles_kernel

__all__ = ["Workspace", "verify", "workspace"]

GREEDY, REJECTION, COUPLED, BLOCK = range(4)
"""Values of `mode`."""

STEP = 16
"""Tops of tiles, or candidates, that others are compared with at a time."""

WIDE = 4096
"""Ids that the slow cut reads at a time."""


@dataclass(frozen=True)
class Batch:
    """The inputs of `verify`, whose docstring tells them."""

    logits: Tensor
    drafts: Tensor
    counts: Tensor
    candidates: Tensor | None
    q: Tensor | None
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    mode: Tensor
    positions: Tensor
    coins: Tensor | None
    final: Tensor | None
    modes: AbstractSet[int]
    filtered: bool


def verify(
    logits: Tensor,
    drafts: Tensor,
    counts: Tensor,
    candidates: Tensor | None,
    q: Tensor | None,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    mode: Tensor,
    positions: Tensor,
    coins: Tensor | None,
    final: Tensor | None,
    space: Workspace,
    modes: AbstractSet[int],
    filtered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accepted int64 [B], emitted int64 [B, R] padded with -1, broken bool [B, R].

    logits: bf16 or fp32 [B, R, V], contiguous. drafts: int64 [B, k], of which `counts` int64 [B] are real.
    candidates int64 and q fp32 [B, k, K]: the laws of the drafts; None for point masses. temperature, top_p, min_p:
    fp32 [B]. top_k, seed, mode: int64 [B]. positions: int64 [B], the first token decided. coins fp32 [B, k] and
    final fp32 [B]: random numbers put in from outside, or None. modes, filtered: the modes that occur and whether
    any request sets top_k or top_p.
    """
    batch = Batch(
        logits=logits,
        drafts=drafts.contiguous(),
        counts=counts,
        candidates=None if candidates is None else candidates.contiguous(),
        q=None if q is None else q.contiguous(),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        mode=mode,
        positions=positions,
        coins=None if coins is None else coins.contiguous(),
        final=final,
        modes=modes,
        filtered=filtered,
    )
    check(batch, space)
    look(batch, space)
    if modes & {REJECTION, BLOCK} or (COUPLED in modes and filtered):
        weigh_and_cut(batch, space)
    if COUPLED in modes:
        couple(batch, space)
    return judge(batch, space)


def check(batch: Batch, space: Workspace) -> None:
    """Refuse what the buffers do not fit or the kernels would misread."""
    expected = (space.requests, space.rows, space.vocabulary)
    if tuple(batch.logits.shape) != expected or not batch.logits.is_contiguous():
        raise ValueError(
            f"logits {tuple(batch.logits.shape)} must be contiguous and {expected}, as the workspace"
        )
    if batch.logits.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"logits are {batch.logits.dtype}, must be bfloat16 or float32")
    for name in ("counts", "temperature", "top_k", "top_p", "min_p", "seed", "mode", "positions"):
        if not getattr(batch, name).is_contiguous():
            raise ValueError(f"{name} must be contiguous")
    if tuple(batch.drafts.shape) != (space.requests, space.rows - 1):
        raise ValueError(f"{space.rows} rows judge {space.rows - 1} drafts, got {tuple(batch.drafts.shape)}")
    if batch.candidates is not None and batch.candidates.shape[-1] > space.slots:
        raise ValueError(
            f"{batch.candidates.shape[-1]} candidates a draft, the workspace has {space.slots} slots"
        )


def look(batch: Batch, space: Workspace) -> None:
    """Tops, faults, and the edge of each row's candidates."""
    count = space.requests * space.rows
    tiles_kernel[(count, space.tiles)](
        batch.logits,
        batch.min_p,
        batch.counts,
        space.tile_top,
        space.tile_id,
        space.tile_fault,
        space.filled,
        space.floor,
        space.vocabulary,
        space.rows,
        space.tiles,
        TILE=space.tile,
    )
    rows_kernel[(count,)](
        space.tile_top,
        space.tile_id,
        space.tile_fault,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.mode,
        batch.counts,
        space.row_top,
        space.row_id,
        space.row_fault,
        space.row_edge,
        space.rows,
        space.tiles,
        TILES=triton.next_power_of_2(space.tiles),
        STEP=STEP,
        SAMPLED=bool(batch.modes - {GREEDY}),
        FILTERED=batch.filtered,
        num_warps=8,
    )


def weigh_and_cut(batch: Batch, space: Workspace) -> None:
    """Cut and kept mass of every sampled row."""
    count = space.requests * space.rows
    masses_kernel[(count, space.tiles)](
        batch.logits,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.mode,
        batch.counts,
        space.floor,
        space.row_top,
        space.row_edge,
        space.filled,
        space.keys,
        space.tile_mass,
        space.tile_alive,
        space.vocabulary,
        space.rows,
        space.tiles,
        TILE=space.tile,
        CAPACITY=space.capacity,
        FILTERED=batch.filtered,
    )
    if batch.filtered:
        rank_kernel[(count, space.capacity // CHUNK)](
            batch.mode,
            batch.counts,
            space.filled,
            space.keys,
            space.ranks,
            space.before,
            space.rows,
            CAPACITY=space.capacity,
            CHUNK=CHUNK,
            STEP=STEP,
        )
    cut_kernel[(count,)](
        batch.top_k,
        batch.top_p,
        batch.mode,
        batch.counts,
        space.tile_mass,
        space.tile_alive,
        space.filled,
        space.keys,
        space.ranks,
        space.before,
        space.row_cut,
        space.row_total,
        space.row_slow,
        space.rows,
        space.tiles,
        TILES=triton.next_power_of_2(space.tiles),
        CAPACITY=space.capacity,
        FILTERED=batch.filtered,
        num_warps=8,
    )
    if batch.filtered:
        slow_kernel[(count,)](
            batch.logits,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.mode,
            batch.counts,
            space.floor,
            space.row_top,
            space.row_cut,
            space.row_total,
            space.row_slow,
            space.rows,
            VOCABULARY=space.vocabulary,
            WIDE=min(WIDE, triton.next_power_of_2(space.vocabulary)),
            num_warps=16,
        )


def couple(batch: Batch, space: Workspace) -> None:
    """The noisy argmax of every coupled row."""
    count = space.requests * space.rows
    noise_kernel[(count, space.tiles)](
        batch.logits,
        batch.temperature,
        batch.seed,
        batch.mode,
        batch.positions,
        batch.counts,
        space.floor,
        space.row_top,
        space.row_cut,
        space.tile_top,
        space.tile_id,
        space.vocabulary,
        space.rows,
        space.tiles,
        TILE=space.tile,
        FILTERED=batch.filtered,
    )
    couple_kernel[(count,)](
        batch.mode,
        batch.counts,
        space.tile_top,
        space.tile_id,
        space.row_id,
        space.rows,
        space.tiles,
        TILES=triton.next_power_of_2(space.tiles),
    )


def judge(batch: Batch, space: Workspace) -> tuple[Tensor, Tensor, Tensor]:
    """The verdict, and the last token of requests that draw it."""
    device = batch.logits.device
    accepted = torch.empty(space.requests, dtype=torch.int64, device=device)
    emitted = torch.empty(space.requests, space.rows, dtype=torch.int64, device=device)
    broken = torch.empty(space.requests, space.rows, dtype=torch.uint8, device=device)
    draws = bool(batch.modes & {REJECTION, BLOCK})
    coins = space.coins if batch.coins is None else batch.coins
    told = batch.candidates is not None and batch.q is not None
    if draws and space.rows > 1:
        prepare_drafts(batch, space, told)
    accept_kernel[(space.requests,)](
        batch.drafts,
        batch.counts,
        batch.mode,
        space.row_id,
        space.row_fault,
        space.law_q,
        space.law_p,
        space.draft_p,
        space.draft_q,
        coins,
        accepted,
        emitted,
        broken,
        space.weights,
        space.vocabulary,
        space.rows,
        ROWS=triton.next_power_of_2(space.rows),
        SLOTS=space.slots,
        DRAWS=draws,
        BLOCKS=BLOCK in batch.modes,
        num_warps=1,
    )
    if draws:
        draw(batch, space, accepted, emitted)
    return accepted, emitted, broken.view(torch.bool)


def prepare_drafts(batch: Batch, space: Workspace, told: bool) -> None:
    """The laws of all drafts, p and q at them, and the coins where none are put in."""
    drafts = space.rows - 1
    drafts_kernel[(space.requests, drafts)](
        batch.logits,
        batch.drafts,
        batch.counts,
        batch.candidates if told else batch.drafts,
        batch.q if told else space.law_q,
        batch.temperature,
        batch.mode,
        space.floor,
        space.row_top,
        space.row_cut,
        space.row_total,
        space.law_id,
        space.law_q,
        space.law_p,
        space.draft_p,
        space.draft_q,
        batch.seed,
        batch.positions,
        space.coins,
        space.vocabulary,
        space.rows,
        batch.candidates.shape[-1] if batch.candidates is not None else 1,
        SLOTS=space.slots,
        TOLD=told,
        GIVEN=batch.coins is not None,
        num_warps=1,
    )


def draw(batch: Batch, space: Workspace, accepted: Tensor, emitted: Tensor) -> None:
    """The last token of rejection and block requests."""
    sums_kernel[(space.requests, space.tiles)](
        batch.logits,
        batch.counts,
        batch.temperature,
        batch.mode,
        space.floor,
        space.row_top,
        space.row_cut,
        space.row_total,
        space.law_id,
        space.law_q,
        accepted,
        space.weights,
        space.sums,
        space.vocabulary,
        space.rows,
        space.tiles,
        TILE=space.tile,
        SLOTS=space.slots,
    )
    draw_kernel[(space.requests,)](
        batch.logits,
        batch.counts,
        batch.temperature,
        batch.seed,
        batch.mode,
        batch.positions,
        batch.final if batch.final is not None else batch.temperature,
        space.floor,
        space.row_top,
        space.row_cut,
        space.row_total,
        space.law_id,
        space.law_q,
        accepted,
        space.weights,
        space.sums,
        emitted,
        space.vocabulary,
        space.rows,
        space.tiles,
        TILE=space.tile,
        TILES=triton.next_power_of_2(space.tiles),
        SLOTS=space.slots,
        GIVEN=batch.final is not None,
    )
