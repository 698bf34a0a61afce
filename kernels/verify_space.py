"""Fixed buffers of a verify, made once, so that a CUDA graph can capture it.

Letters: B requests, R = k + 1 rows a request, V vocabulary, k drafts.
"""

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from ft.kernels.verify_law import ID_LIMIT, TILE

CHUNK = 64
"""Candidates ranked by one program."""


@dataclass(frozen=True)
class Workspace:
    """Fixed buffers of a verify of `requests` of `rows` rows, made by `workspace`.

    By tile of a row [B * R, tiles]: tile_top fp32, tile_id and tile_fault and tile_alive int32, tile_mass int64.
    By candidate of a row [B * R, capacity]: keys and before int64, ranks int32; filled int32 [B * R] counts them.
    By row [B * R]: row_top and row_edge fp32, row_id and row_cut and row_total int64, row_fault and row_slow int32.
    By draft [B, k, slots]: law_id int32, law_q and law_p fp32; and [B, k] fp32: draft_p, draft_q, coins.
    By request [B]: floor fp32, weights fp64, sums int64 [B, tiles, 2].
    """

    requests: int
    rows: int
    vocabulary: int
    tile: int
    tiles: int
    capacity: int
    slots: int
    tile_top: Tensor
    tile_id: Tensor
    tile_fault: Tensor
    tile_alive: Tensor
    tile_mass: Tensor
    keys: Tensor
    before: Tensor
    ranks: Tensor
    filled: Tensor
    row_top: Tensor
    row_edge: Tensor
    row_id: Tensor
    row_cut: Tensor
    row_total: Tensor
    row_fault: Tensor
    row_slow: Tensor
    law_id: Tensor
    law_q: Tensor
    law_p: Tensor
    draft_p: Tensor
    draft_q: Tensor
    coins: Tensor
    floor: Tensor
    weights: Tensor
    sums: Tensor


def workspace(
    requests: int,
    rows: int,
    vocabulary: int,
    device: torch.device | str,
    choices: int = 16,
    capacity: int = 4096,
    tile: int = TILE,
) -> Workspace:
    """Buffers for at most `choices` candidates a draft. capacity: candidates of a row's cut, a power of two from
    CHUNK on; a row with more of them takes the slow cut. tile: ids a program works on, a power of two from 4 on.
    """
    if not 0 < vocabulary < ID_LIMIT:
        raise ValueError(f"vocabulary {vocabulary} is outside 1..{ID_LIMIT - 1}, the ids a sort key can hold")
    if tile < 4 or tile & (tile - 1):
        raise ValueError(f"tile {tile} must be a power of two, 4 or more")
    if capacity < CHUNK or capacity & (capacity - 1):
        raise ValueError(f"capacity {capacity} must be a power of two, {CHUNK} or more")
    tiles, slots = triton.cdiv(vocabulary, tile), triton.next_power_of_2(choices)
    count, drafts = requests * rows, rows - 1

    def buffer(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return Workspace(
        requests=requests,
        rows=rows,
        vocabulary=vocabulary,
        tile=tile,
        tiles=tiles,
        capacity=capacity,
        slots=slots,
        tile_top=buffer(torch.float32, count, tiles),
        tile_id=buffer(torch.int32, count, tiles),
        tile_fault=buffer(torch.int32, count, tiles),
        tile_alive=buffer(torch.int32, count, tiles),
        tile_mass=buffer(torch.int64, count, tiles),
        keys=buffer(torch.int64, count, capacity),
        before=buffer(torch.int64, count, capacity),
        ranks=buffer(torch.int32, count, capacity),
        filled=buffer(torch.int32, count),
        row_top=buffer(torch.float32, count),
        row_edge=buffer(torch.float32, count),
        row_id=buffer(torch.int64, count),
        row_cut=buffer(torch.int64, count),
        row_total=buffer(torch.int64, count),
        row_fault=buffer(torch.int32, count),
        row_slow=buffer(torch.int32, count),
        law_id=buffer(torch.int32, requests, drafts, slots),
        law_q=buffer(torch.float32, requests, drafts, slots),
        law_p=buffer(torch.float32, requests, drafts, slots),
        draft_p=buffer(torch.float32, requests, drafts),
        draft_q=buffer(torch.float32, requests, drafts),
        coins=buffer(torch.float32, requests, drafts),
        floor=buffer(torch.float32, requests),
        weights=buffer(torch.float64, requests),
        sums=buffer(torch.int64, requests, tiles, 2),
    )
