"""Paged key-value memory: one page table for all layers, target and draft alike.

Token slot of position p of a request: page_table[slot, p // page_size] * page_size + p % page_size.
The last page is a dummy that padding rows write to and nobody reads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

KEY_BLOCK = 256
"""Positions of one attention split; splits stand at multiples of it, counted from position 0."""


@dataclass(frozen=True)
class KVLayer:
    """Keys and values of one layer, [token slots, nkv, D], and the table that maps positions to slots."""

    keys: Tensor
    values: Tensor
    pages: "PageTable"


class PageTable:
    """Device page table [slots + 1, pages a request], and the free list on the host."""

    def __init__(self, slots: int, context: int, page_size: int, pages: int, device: torch.device) -> None:
        if KEY_BLOCK % page_size:
            raise ValueError(
                f"page size {page_size} must divide the attention split of {KEY_BLOCK} positions"
            )
        self.page_size = page_size
        self.pages = pages
        self.dummy = pages
        blocks = -(-context // KEY_BLOCK)
        width = blocks * KEY_BLOCK // page_size
        self.table = torch.full((slots + 1, width), self.dummy, dtype=torch.int64, device=device)
        self._free = list(range(pages - 1, -1, -1))
        self._offsets = torch.arange(KEY_BLOCK, device=device)

    @property
    def free(self) -> int:
        """Pages that no request holds."""
        return len(self._free)

    @property
    def token_slots(self) -> int:
        """Token slots that a layer must provide, the dummy page included."""
        return (self.pages + 1) * self.page_size

    def key_blocks(self, bound: int | None) -> int:
        """Attention splits that hold the positions below `bound`; all of them when it is None."""
        every = self.table.shape[1] * self.page_size // KEY_BLOCK
        return every if bound is None else min(-(-bound // KEY_BLOCK), every)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def allocate(self, slot: int, count: int) -> list[int]:
        """Give `count` pages to an empty request slot. ValueError when fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} pages asked for, {len(self._free)} of {self.pages} are free")
        taken = [self._free.pop() for _ in range(count)]
        self.table[slot, :count] = torch.tensor(taken, dtype=torch.int64).to(self.table.device)
        return taken

    def release(self, slot: int, taken: list[int]) -> None:
        """Return the pages of a request."""
        self.table[slot] = self.dummy
        self._free.extend(reversed(taken))

    def write_slots(self, slots: Tensor, positions: Tensor, valid: Tensor) -> Tensor:
        """Token slots [B, R] of rows at `positions` [B, R]; rows at or beyond `valid` [B] go to the dummy."""
        rows = torch.arange(positions.shape[1], device=positions.device)
        column = (positions // self.page_size).clamp(max=self.table.shape[1] - 1)
        pages = self.table[slots[:, None], column]
        pages = torch.where(rows[None] < valid[:, None], pages, self.dummy)
        return pages * self.page_size + positions % self.page_size

    def block_slots(self, slots: Tensor, block: int) -> Tensor:
        """Token slots [B, KEY_BLOCK] of the positions of one attention split."""
        first = block * KEY_BLOCK // self.page_size
        pages = self.table[slots, first : first + KEY_BLOCK // self.page_size]
        return (
            pages.repeat_interleave(self.page_size, dim=1) * self.page_size + self._offsets % self.page_size
        )


class PagedKV:
    """Keys and values of `layers` layers behind one page table."""

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        table: PageTable,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, table.token_slots, heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.table = table

    def layer(self, index: int) -> KVLayer:
        return KVLayer(self.keys[index], self.values[index], self.table)

    def committed(self, index: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [length, nkv, D] of one request's first `length` positions."""
        device = self.keys.device
        positions = torch.arange(length, device=device)[None]
        slots = torch.full((1,), slot, device=device)
        where = self.table.write_slots(slots, positions, torch.full((1,), length, device=device))[0]
        return self.keys[index, where], self.values[index, where]
