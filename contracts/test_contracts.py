"""Every contract over every cell of the matrix."""

from collections.abc import Callable

import pytest

from ft.contracts.checks import drafts, laws, refusals, rows, states, target, texts
from ft.contracts.matrix import Cell
from ft.contracts.rig import Setting

Check = Callable[[Setting, int], None]

TARGET = (target.check_prefill, target.check_verify, target.check_mrope)
ROWS = (rows.check_verify_rows_equal_decode_rows, rows.check_prefill_ignores_neighbours)
DRAFT = (
    drafts.check_prefill,
    drafts.check_rounds,
    drafts.check_nothing_to_draft_from,
    drafts.check_reused_slot,
)
STATES = (
    states.check_every_accept_count,
    states.check_neighbours,
    states.check_poisoned_rows,
    states.check_slot_reuse,
)
OWN_BITS = ("float32", "bfloat16")
"""Dtypes of contracts that hold the engine against itself, bit by bit or token by token."""

LAWS = (laws.check_edited_text, laws.check_counts_of_rejected_drafts, laws.check_grammar)
PROMISES = (
    laws.check_edits_hold,
    laws.check_edits_leave_with_their_request,
    laws.check_grammar_failure,
)

CUTS = (texts.check_stop_ids, texts.check_limits, texts.check_abort, texts.check_draft_limits)


def hold(check: Check, cell: Cell) -> None:
    """Run a contract on a cell, or check that the cell is refused for its reason."""
    if cell.refusal:
        refusals.check_cell_refused(cell)
    else:
        check(cell.setting(), cell.variant.vocabulary)


def named(check: Check) -> str:
    return check.__name__.removeprefix("check_")


@pytest.mark.cells(proposers=("off",))
@pytest.mark.parametrize("check", TARGET, ids=named)
def test_target(cell: Cell, check: Check) -> None:
    hold(check, cell)


@pytest.mark.cells(proposers=("off",), dtypes=OWN_BITS)
@pytest.mark.parametrize("check", ROWS, ids=named)
def test_rows(cell: Cell, check: Check) -> None:
    hold(check, cell)


@pytest.mark.cells(proposers=("mtp",))
@pytest.mark.parametrize("check", DRAFT, ids=named)
def test_draft(cell: Cell, check: Check) -> None:
    hold(check, cell)


@pytest.mark.cells(proposers=("mtp",))
@pytest.mark.parametrize("check", STATES, ids=named)
def test_states(cell: Cell, check: Check) -> None:
    hold(check, cell)


@pytest.mark.cells(dtypes=OWN_BITS)
def test_greedy(cell: Cell) -> None:
    hold(texts.check_greedy, cell)


@pytest.mark.cells(dtypes=OWN_BITS)
def test_seeded(cell: Cell) -> None:
    hold(texts.check_seeded, cell)


@pytest.mark.cells(proposers=("mtp", "oracle", "scripted"), drafts=(3, 7), dtypes=OWN_BITS)
@pytest.mark.parametrize("check", CUTS, ids=named)
def test_cuts(cell: Cell, check: Check) -> None:
    hold(check, cell)


@pytest.mark.cells(proposers=("off", "mtp"))
def test_reference_text(cell: Cell) -> None:
    hold(texts.check_reference_text, cell)


@pytest.mark.cells(drafts=(3,), dtypes=OWN_BITS)
def test_unheld_pages(cell: Cell) -> None:
    hold(texts.check_unheld_pages, cell)


@pytest.mark.cells(proposers=("mtp",), drafts=(3,), dtypes=OWN_BITS)
def test_rejection(cell: Cell) -> None:
    hold(texts.check_rejection_runs, cell)


@pytest.mark.cells(drafts=(3,), dtypes=OWN_BITS)
@pytest.mark.parametrize("check", LAWS, ids=named)
def test_edits(cell: Cell, check: Check) -> None:
    hold(check, cell)


@pytest.mark.cells(drafts=(7,), dtypes=OWN_BITS)
@pytest.mark.parametrize("check", PROMISES, ids=named)
def test_edits_promise(cell: Cell, check: Check) -> None:
    hold(check, cell)


@pytest.mark.cells(drafts=(3,), dtypes=OWN_BITS)
def test_logprobs(cell: Cell) -> None:
    hold(laws.check_logprobs, cell)


@pytest.mark.cells(proposers=("off", "mtp"))
def test_block_verification(cell: Cell) -> None:
    hold(laws.check_block, cell)
