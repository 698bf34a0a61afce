"""The joint law of a verify is the target's, by exact enumeration of its random numbers (verify_sampling 12)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ft.contracts.law.boxes import (
    DEVICE,
    fast_box,
    mixed_box,
    padded_box,
    reference_box,
    spread_box,
    triton_box,
)
from ft.contracts.law.cases import CASES, EXACT, PLAIN, WRONG, Case, distance, sampled
from ft.contracts.law.enumeration import Box
from ft.contracts.law.faults import FAULTS, faulty_box
from ft.fast import verify as fast_verify
from ft.fast.draft_law import DraftLaw
from ft.fast.edits import Editor
from ft.fast.sampling import units
from ft.reference import edits as reference_edits
from ft.reference import verify as reference_verify
from ft.reference.types import Sampling, Verification


def fast(case: Case) -> Box:
    return fast_box(case.setup, case.told)


def triton(case: Case) -> Box:
    return triton_box(case.setup, case.told)


def reference(case: Case) -> Box:
    return reference_box(case.setup, case.told)


@pytest.mark.parametrize("name", CASES)
def test_fast_law_is_the_targets(name: str) -> None:
    drafts = 3 if CASES[name].counts is None else 2
    assert distance(fast, CASES[name], drafts) <= EXACT


@pytest.mark.parametrize("name", CASES)
def test_reference_law_is_the_targets(name: str) -> None:
    deep = ("plain", "NaN q in the second row", "block: plain", "mixed counts", "block: mixed counts")
    assert distance(reference, CASES[name], 2 if name in deep else 1) <= EXACT


INTERPRETED = ("duplicate candidates",)
"""What the interpreter enumerates on a CPU, where each case takes a minute; a GPU takes them all. On a CPU
`tests/kernels` compares the kernels with the plain verify, whose law is enumerated here."""


@pytest.mark.parametrize("name", CASES if DEVICE == "cuda" else INTERPRETED)
def test_triton_law_is_the_targets(name: str) -> None:
    assert distance(triton, CASES[name], 2 if DEVICE == "cuda" else 1) <= EXACT


@pytest.mark.skipif(DEVICE == "cpu", reason="interpreted, two drafts take minutes; a GPU runs them")
def test_triton_block_law_needs_two_drafts() -> None:
    assert distance(triton, CASES["block: plain"], 3) <= EXACT


@pytest.mark.parametrize("verification", [Verification.REJECTION, Verification.BLOCK])
def test_fast_law_beside_requests_of_other_kinds(verification: Verification) -> None:
    case = sampled(Sampling(temperature=0.9, top_k=4, verification=verification), counts=(2, 1))
    assert distance(lambda case: mixed_box(case.setup.sampling), case, 2) <= EXACT


@pytest.mark.parametrize("verification", [Verification.REJECTION, Verification.BLOCK])
def test_fast_law_with_support_at_tile_edges(verification: Verification) -> None:
    live = [0, 1023, 1024, 1500, 2050]
    case = sampled(Sampling(temperature=1.0, top_k=4, top_p=0.95, verification=verification), counts=(1,))
    assert distance(lambda case: spread_box(case.setup.sampling, live, 2051), case, 1) <= EXACT


def test_fast_law_beside_a_padded_vocabulary() -> None:
    assert distance(lambda case: padded_box(case.setup), sampled(PLAIN), 2) <= EXACT


def test_variant_without_a_fault_is_exact() -> None:
    for name in ("plain", "duplicate candidates"):
        assert distance(lambda case: faulty_box(case.setup.sampling, None), CASES[name], 1) <= EXACT


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_variants_are_caught(fault: str) -> None:
    case = CASES["duplicate candidates" if fault == "equal candidates overwrite" else "plain"]
    assert distance(lambda case: faulty_box(case.setup.sampling, fault), case, 1) >= WRONG


def as_told(drafts: Tensor, candidates: Tensor, q: Tensor, vocabulary: int) -> DraftLaw:
    """A law of drafts that neither checks nor mends the total."""
    at_draft = torch.where(candidates == drafts[..., None], q, 0.0).sum(-1)
    return DraftLaw(candidates, q, torch.ones_like(q, dtype=torch.bool), at_draft)


def p_again(p: Tensor, laws: DraftLaw, accepted: Tensor, counts: Tensor, weight: Tensor) -> Tensor:
    """A last draw that subtracts nothing."""
    return units(p.gather(1, accepted[:, None, None].expand(-1, 1, p.shape[2]))[:, 0])


def next_row(values: Tensor, row: Tensor) -> Tensor:
    """A last draw from the row after the right one."""
    return values[torch.arange(len(row)), (row + 1).clamp(max=values.shape[1] - 1)]


def token_by_token(
    p: Tensor, laws: DraftLaw, at_draft: Tensor, counts: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Block verification whose coins are judged as if each draft stood alone, with the block's residual."""
    ratio = (at_draft.double() / laws.at_draft.double()).clamp(max=1.0)
    real = torch.arange(coins.shape[1]) < counts[:, None]
    accepted = ((coins < ratio) & real).long().cumprod(1).sum(1)
    weights = torch.cat([torch.ones(len(counts), 1, dtype=torch.float64), ratio.cumprod(1)], 1)
    return accepted, weights.gather(1, accepted[:, None])[:, 0]


def unweighted(
    p: Tensor, laws: DraftLaw, at_draft: Tensor, counts: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Block verification whose residual forgets the weight."""
    accepted, weight = RIGHT_BLOCK(p, laws, at_draft, counts, coins)
    return accepted, torch.ones_like(weight)


RIGHT_BLOCK = fast_verify.judge_block

VERIFY_FAULTS = {
    "residual is p": ("final_mass", p_again, "plain"),
    "q as told, not renormalised": ("law_of_drafts", as_told, "wrong total"),
    "last token of the next row": ("row_of", next_row, "plain"),
    "block judged token by token": ("judge_block", token_by_token, "block: plain"),
    "block residual without its weight": ("judge_block", unweighted, "block: plain"),
}


@pytest.mark.parametrize("name", VERIFY_FAULTS)
def test_faults_planted_in_the_fast_verify_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, broken, case = VERIFY_FAULTS[name]
    monkeypatch.setattr(fast_verify, attribute, broken)
    try:
        found = distance(fast, CASES[case], 2)
    except AssertionError:
        return  # runs of other lengths than the coins say are caught before any law
    assert found >= WRONG


RIGHT_EDIT = Editor.edited
Edit = Callable[[Editor, Tensor, Tensor], Tensor]


def stale(editor: Editor, logits: Tensor, drafts: Tensor) -> Tensor:
    """Every row is edited as if no draft stood before it."""
    return RIGHT_EDIT(editor, logits, drafts[:, :0])


def pending_twice(editor: Editor, logits: Tensor, drafts: Tensor) -> Tensor:
    """The pending token is counted once more, as the first draft."""
    last = editor.texts.tokens.long().gather(1, editor.texts.length[:, None] - 1)
    return RIGHT_EDIT(editor, logits, torch.cat([last, drafts], 1))


def last_draft_only(editor: Editor, logits: Tensor, drafts: Tensor) -> Tensor:
    """Only the draft right before the row is seen."""
    return RIGHT_EDIT(editor, logits, drafts[:, -1:])


def untouched(editor: Editor, logits: Tensor, drafts: Tensor) -> Tensor:
    """Only the row without drafts is edited."""
    return logits if drafts.shape[1] else RIGHT_EDIT(editor, logits, drafts)


EDIT_FAULTS: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "stale": (stale, ("penalties", "bad words", "grammar", "thinking budget", "minimum length")),
    "pending counted twice": (pending_twice, ("penalties",)),
    "last draft only": (last_draft_only, ("penalties", "minimum length", "thinking budget")),
    "first row only": (untouched, ("logit bias", "allowed ids", "every edit", "block: every edit")),
}


@pytest.mark.parametrize(
    ("fault", "case"), [(fault, case) for fault, (_, cases) in EDIT_FAULTS.items() for case in cases]
)
def test_faults_planted_in_the_edits_are_caught(
    fault: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Editor, "edited", EDIT_FAULTS[fault][0])
    assert distance(fast, CASES[case], 2) >= WRONG


def test_a_fault_planted_in_the_reference_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_verify, "draft_density", lambda draft, ids, q, v: torch.full((v,), 1 / v))
    assert distance(reference, CASES["plain"], 1) >= WRONG


def test_a_fault_planted_in_the_references_edits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_edits, "penalised", lambda row, edits, history: row)
    assert distance(reference, CASES["penalties"], 1) >= WRONG
