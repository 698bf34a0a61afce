"""What is enumerated: every stage of the law of a row, every kind of draft law, every verification that draws."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ft.contracts.law.enumeration import Box, Model, joint_laws, total_variation
from ft.contracts.law.exact import Setup
from ft.reference.types import Edits, Sampling, ThinkingBudget, Verification

EXACT = 1e-6
WRONG = 1e-4
"""Total variation of a right verify at most, and of a planted fault at least."""

VOCABULARY = 5
PLAIN = Sampling(temperature=1.0)
FILTERED = Sampling(temperature=1.0, top_k=4, top_p=0.9, min_p=0.05)
PENALTIES = Edits(repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.3)


@dataclass(frozen=True)
class Case:
    """tell: what the verify hears of q, by row; told False: it hears of no q at all. counts: real drafts."""

    setup: Setup
    tell: Callable[[int, Tensor], Tensor] | None = None
    greedy_walk: bool = False
    duplicates: bool = False
    told: bool = True
    counts: tuple[int, ...] | None = None
    candidates: int = 3

    def blockwise(self) -> "Case":
        """The same case under block verification."""
        sampling = replace(self.setup.sampling, verification=Verification.BLOCK)
        return replace(self, setup=replace(self.setup, sampling=sampling))


def sampled(sampling: Sampling, **details: object) -> Case:
    return Case(Setup(sampling), **details)  # type: ignore[arg-type]


def edited(edits: Edits, sampling: Sampling = PLAIN, **details: object) -> Case:
    """A request of prompt 3, 1 that has emitted 2 and 2; its stop id is 4."""
    setup = Setup(replace(sampling, edits=edits), prompt=(3, 1), output=(2, 2), stop_ids=(4,))
    return Case(replace(setup, **details))  # type: ignore[arg-type]


def no_repeats(output: tuple[int, ...]) -> frozenset[int]:
    """A grammar: never the id before, and 0 only after an even number of tokens."""
    ids = {0, 1, 2, 3, 4} - set(output[-1:])
    return frozenset(ids - {0} if len(output) % 2 else ids)


def without(row: int) -> Callable[[int, Tensor], Tensor]:
    return lambda r, q: torch.full_like(q, torch.nan) if r == row else q


EVERY_EDIT = replace(
    PENALTIES,
    logit_bias=((0, 1.5), (3, -2.0)),
    allowed_ids=(0, 1, 2, 3),
    bad_words=((2, 1), (0,)),
    min_tokens=4,
)

TOKENWISE = {
    "plain": sampled(PLAIN),
    "temperature, top-k": sampled(Sampling(temperature=0.7, top_k=4)),
    "temperature, top-p": sampled(Sampling(temperature=1.3, top_p=0.8)),
    "min-p": sampled(Sampling(temperature=1.0, min_p=0.1)),
    "top-k, top-p, min-p": sampled(FILTERED),
    "p = 0 at drafts": sampled(Sampling(temperature=1.0, top_k=2), candidates=4),
    "NaN q": sampled(PLAIN, tell=without(0)),
    "NaN q in the second row": sampled(PLAIN, tell=without(1)),
    "negative q": sampled(PLAIN, tell=lambda r, q: q * torch.tensor([1.0, 1.0, -1.0])),
    "wrong total": sampled(PLAIN, tell=lambda r, q: q * 0.7),
    "wrong shape, wrong total": sampled(PLAIN, tell=lambda r, q: q * torch.tensor([0.3, 1.0, 1.0])),
    "total trusted, then renormalised": sampled(PLAIN, tell=lambda r, q: q * (1 + 9e-5)),
    "greedy walk, sampled target": sampled(PLAIN, greedy_walk=True, tell=lambda r, q: q * torch.inf),
    "no q, sampled walk": sampled(PLAIN, told=False),
    "duplicate candidates": sampled(PLAIN, duplicates=True),
    "mixed counts": sampled(PLAIN, counts=(2, 0, 1)),
    "logit bias": edited(Edits(logit_bias=((0, 1.5), (3, -2.0)))),
    "allowed ids": edited(Edits(allowed_ids=(0, 2, 4))),
    "minimum length": edited(Edits(min_tokens=4)),
    "penalties": edited(PENALTIES),
    "penalties, filters": edited(PENALTIES, FILTERED),
    "bad words": edited(Edits(bad_words=((2, 1), (1, 0, 3), (2, 2, 4)))),
    "grammar": edited(Edits(), grammar=no_repeats),
    "thinking budget": edited(Edits(thinking=ThinkingBudget(3, (4, 0)))),
    "thinking may end by itself": edited(Edits(thinking=ThinkingBudget(3, (4, 0))), output=(2, 4)),
    "every edit": edited(EVERY_EDIT, FILTERED),
}

BLOCKWISE = (
    "plain",
    "top-k, top-p, min-p",
    "p = 0 at drafts",
    "NaN q in the second row",
    "wrong total",
    "greedy walk, sampled target",
    "no q, sampled walk",
    "duplicate candidates",
    "mixed counts",
    "penalties",
    "grammar",
    "every edit",
)

CASES = {**TOKENWISE, **{f"block: {name}": TOKENWISE[name].blockwise() for name in BLOCKWISE}}


def distance(make: Callable[[Case], Box], case: Case, drafts: int) -> float:
    """The largest total variation between the joint law of a verify and the target's."""
    model = Model(7, VOCABULARY, drafts, case.candidates, case.duplicates)
    paths = model.paths(case.counts or (drafts,), case.tell, case.greedy_walk)
    laws = joint_laws(make(case), paths, model, case.setup)
    target = model.target(drafts + 1, case.setup)
    assert abs(target.sum() - 1) < 1e-12
    for law in laws.values():
        assert abs(law.sum() - 1) < 1e-6
    return max(total_variation(law, target) for law in laws.values())
