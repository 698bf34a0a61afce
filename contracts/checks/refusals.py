"""What the plan refuses, it refuses with value, limit and way out."""

from ft.contracts.matrix import Cell, folder_of
from ft.fast.facts import read_checkpoint_facts, read_device_facts
from ft.fast.inputs import Flags
from ft.fast.plan import resolve
from ft.fast.refusal import Refusal


def check_cell_refused(cell: Cell) -> None:
    """The plan of this cell is refused, and the message holds every word of the cell's reason."""
    folder = folder_of(cell.variant)
    flags = Flags(
        model=folder,
        speculative_algorithm=cell.proposer,
        speculative_num_steps=cell.drafts or None,
        cache_type=cell.cache,
        attention_backend=cell.backend,
        device=cell.device,
    )
    try:
        plan = resolve(flags, read_checkpoint_facts(folder), read_device_facts(cell.device))
    except Refusal as refusal:
        missing = [word for word in cell.refusal if word not in str(refusal)]
        assert not missing, f"the refusal does not say {missing}: {refusal}"
    else:
        raise AssertionError(f"{cell.name} was planned, not refused: {plan}")
