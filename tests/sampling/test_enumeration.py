"""The joint law of a verify is the target's, by exact enumeration (verify_sampling 12)."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ft.fast import verify as fast_verify
from ft.fast.draft_law import DraftLaw
from ft.fast.sampling import units
from ft.reference import verify as reference_verify
from ft.reference.types import Sampling, Verification

from .boxes import FAULTS, fast_box, faulty_box, mixed_box, reference_box, spread_box
from .enumeration import Box, Model, joint_laws, total_variation

EXACT = 1e-6
WRONG = 1e-4
PLAIN = Sampling(temperature=1.0)


@dataclass(frozen=True)
class Case:
    """tell: what the verify hears of q, by row; told False: it hears of no q at all."""

    sampling: Sampling
    tell: Callable[[int, Tensor], Tensor] | None = None
    greedy_walk: bool = False
    duplicates: bool = False
    told: bool = True
    counts: tuple[int, ...] | None = None
    candidates: int = 3


def without(row: int) -> Callable[[int, Tensor], Tensor]:
    return lambda r, q: torch.full_like(q, torch.nan) if r == row else q


CASES = {
    "plain": Case(PLAIN),
    "temperature, top-k": Case(Sampling(temperature=0.7, top_k=4)),
    "temperature, top-p": Case(Sampling(temperature=1.3, top_p=0.8)),
    "top-k, top-p, min-p": Case(Sampling(temperature=1.0, top_k=4, top_p=0.9, min_p=0.05)),
    "p = 0 at drafts": Case(Sampling(temperature=1.0, top_k=2), candidates=4),
    "NaN q": Case(PLAIN, tell=without(0)),
    "NaN q in the second row": Case(PLAIN, tell=without(1)),
    "negative q": Case(PLAIN, tell=lambda r, q: q * torch.tensor([1.0, 1.0, -1.0])),
    "wrong total": Case(PLAIN, tell=lambda r, q: q * 0.7),
    "total trusted, then renormalised": Case(PLAIN, tell=lambda r, q: q * (1 + 9e-5)),
    "greedy walk, sampled target": Case(PLAIN, greedy_walk=True, tell=lambda r, q: q * torch.inf),
    "no q, sampled walk": Case(PLAIN, told=False),
    "duplicate candidates": Case(PLAIN, duplicates=True),
    "mixed counts": Case(PLAIN, counts=(2, 0, 1)),
}


def distance(make: Callable[[Case], Box], case: Case, drafts: int) -> float:
    """The largest total variation between the joint law of a verify and the target's."""
    model = Model(7, 5, drafts, case.candidates, case.duplicates)
    paths = model.paths(case.counts or (drafts,), case.tell, case.greedy_walk)
    laws = joint_laws(make(case), paths, model, case.sampling)
    target = model.target(drafts + 1, case.sampling)
    assert abs(target.sum() - 1) < 1e-12
    for law in laws.values():
        assert abs(law.sum() - 1) < 1e-6
    return max(total_variation(law, target) for law in laws.values())


def fast(case: Case) -> Box:
    return fast_box(case.sampling, case.told)


def reference(case: Case) -> Box:
    return reference_box(case.sampling, case.told)


@pytest.mark.parametrize("name", CASES)
def test_fast_law_is_the_targets(name: str) -> None:
    drafts = 3 if CASES[name].counts is None else 2
    assert distance(fast, CASES[name], drafts) <= EXACT


@pytest.mark.parametrize("name", CASES)
def test_reference_law_is_the_targets(name: str) -> None:
    drafts = 2 if CASES[name].counts else 1 if name not in ("plain", "NaN q in the second row") else 2
    assert distance(reference, CASES[name], drafts) <= EXACT


def test_fast_law_beside_greedy_and_coupled_requests() -> None:
    sampling = Sampling(temperature=0.9, top_k=4, verification=Verification.REJECTION)
    assert distance(lambda case: mixed_box(case.sampling), Case(sampling, counts=(2, 1)), 2) <= EXACT


def test_fast_law_with_support_at_tile_edges() -> None:
    live = [0, 1023, 1024, 1500, 2050]
    case = Case(Sampling(temperature=1.0, top_k=4, top_p=0.95), counts=(1,))
    assert distance(lambda case: spread_box(case.sampling, live, 2051), case, 1) <= EXACT


def test_variant_without_a_fault_is_exact() -> None:
    for name in ("plain", "duplicate candidates"):
        assert distance(lambda case: faulty_box(case.sampling, None), CASES[name], 1) <= EXACT


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_variants_are_caught(fault: str) -> None:
    case = CASES["duplicate candidates" if fault == "equal candidates overwrite" else "plain"]
    assert distance(lambda case: faulty_box(case.sampling, fault), case, 1) >= WRONG


def as_told(drafts: Tensor, candidates: Tensor, q: Tensor, vocabulary: int) -> DraftLaw:
    """A law of drafts that neither checks nor mends the total."""
    return DraftLaw(candidates, q, torch.where(candidates == drafts[..., None], q, 0.0).sum(-1))


def p_again(p: Tensor, laws: DraftLaw, accepted: Tensor, counts: Tensor) -> Tensor:
    """A last draw that subtracts nothing."""
    return units(p.gather(1, accepted[:, None, None].expand(-1, 1, p.shape[2]))[:, 0])


def next_row(values: Tensor, row: Tensor) -> Tensor:
    """A last draw from the row after the right one."""
    return values[torch.arange(len(row)), (row + 1).clamp(max=values.shape[1] - 1)]


FAST_MUTANTS = {
    "residual is p": ("final_mass", p_again),
    "q as told, not renormalised": ("law_of_drafts", as_told),
    "last token of the next row": ("row_of", next_row),
}


@pytest.mark.parametrize("name", FAST_MUTANTS)
def test_faults_planted_in_the_fast_verify_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, broken = FAST_MUTANTS[name]
    monkeypatch.setattr(fast_verify, attribute, broken)
    assert distance(fast, CASES["wrong total" if "told" in name else "plain"], 2) >= WRONG


def test_a_fault_planted_in_the_reference_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_verify, "draft_density", lambda draft, ids, q, v: torch.full((v,), 1 / v))
    assert distance(reference, CASES["plain"], 1) >= WRONG
