"""Page arithmetic: every page size, block edges, the dummy page, the free list."""

import pytest
import torch

from ft.fast.pools.paged import KEY_BLOCK, PageTable

CPU = torch.device("cpu")


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_write_and_read_addresses_agree_at_every_position(page_size: int) -> None:
    table = PageTable(2, 600, page_size, 2 * 608 // page_size, CPU)
    table.allocate(1, 3)
    table.allocate(0, table.pages_for(600))
    slots = torch.tensor([0])
    positions = torch.arange(600)[None]
    written = table.write_slots(slots, positions, torch.tensor([600]))[0]
    read = torch.cat([table.block_slots(slots, block)[0] for block in range(3)])[:600]
    assert torch.equal(written, read)
    assert len(set(written.tolist())) == 600
    assert written.max() < table.dummy * page_size


def test_padding_rows_and_the_sink_write_to_the_dummy_page() -> None:
    table = PageTable(1, 64, 4, 16, CPU)
    table.allocate(0, 16)
    where = table.write_slots(
        torch.tensor([0, 1]), torch.tensor([[5, 6, 7], [0, 1, 2]]), torch.tensor([2, 0])
    )
    assert (where[0, 2] >= table.dummy * 4) and bool((where[1] >= table.dummy * 4).all())
    assert bool((where[0, :2] < table.dummy * 4).all())


def test_pages_come_back_and_too_many_are_refused() -> None:
    table = PageTable(2, 64, 4, 10, CPU)
    taken = table.allocate(0, 7)
    with pytest.raises(ValueError, match="4 pages asked for, 3 of 10"):
        table.allocate(1, 4)
    table.release(0, taken)
    assert table.free == 10 and bool((table.table[0] == table.dummy).all())
    assert sorted(table.allocate(1, 10)) == list(range(10))


def test_a_page_size_that_does_not_divide_the_split_is_refused() -> None:
    with pytest.raises(ValueError, match="page size 48"):
        PageTable(1, 64, 48, 10, CPU)


@pytest.mark.parametrize(
    ("bound", "blocks"), [(1, 1), (KEY_BLOCK, 1), (KEY_BLOCK + 1, 2), (None, 4), (9999, 4)]
)
def test_key_blocks_cover_the_bound_and_never_more_than_the_context(bound: int | None, blocks: int) -> None:
    assert PageTable(1, 1000, 16, 64, CPU).key_blocks(bound) == blocks
