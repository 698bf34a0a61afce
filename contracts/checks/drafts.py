"""The engine's MTP draft equals the reference's after every hook: tokens, q, draft keys and values, chained hidden,
at every accept count and several rounds, for any cut of the prompt."""

import itertools
from dataclasses import replace

import torch

from ft.contracts.bench import FastBench, Rows, verdict_of
from ft.contracts.checks.target import CUTS, compare_states
from ft.contracts.checks.texts import prompts
from ft.contracts.compare import assert_close
from ft.contracts.oracle import ReferenceBench
from ft.contracts.rig import Setting
from ft.contracts.tolerances import tolerance
from ft.reference.types import Proposal, Sampling, Verification

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.8, seed=5, verification=Verification.COUPLED),
    Sampling(temperature=1.0, top_k=12, seed=6, verification=Verification.REJECTION),
)


def check_prefill(setting: Setting, vocabulary: int) -> None:
    """Draft keys and values after prompts of 1..11 tokens at odd cuts; the next token of a row is never a guess."""
    for length in (1, 2, 10, 11):
        prompt = prompts(vocabulary, (length,), seed=41)[0]
        reference = ReferenceBench(setting)
        reference.start(0, prompt)
        for grid in CUTS:
            bench = FastBench(replace(setting, grid=grid))
            bench.start(1, prompt)
            compare_drafts(f"prompt {length}, grid {grid}", reference, bench, 1, length - 1)


def check_rounds(setting: Setting, vocabulary: int) -> None:
    """Propose, verify, post-verify with every accept count, in each kind of sampling."""
    drafts = setting.drafts
    counts = [0, drafts, drafts, *range(drafts), 0, 0]
    for sampling in SAMPLINGS:
        for first in range(0, len(counts), 4):
            _rounds(setting, vocabulary, sampling, counts[first : first + 4])


def _rounds(setting: Setting, vocabulary: int, sampling: Sampling, counts: list[int]) -> None:
    prompt = prompts(vocabulary, (67,), seed=42)[0]
    words = itertools.cycle(prompts(vocabulary, (83,), seed=43)[0])
    reference, bench = ReferenceBench(setting), FastBench(setting)
    reference.start(0, prompt, sampling, seed=77)
    bench.start(2, prompt, sampling, seed=77)
    committed, pending = len(prompt) - 1, prompt[-1]
    for accepted in counts:
        name = f"{sampling.mode().name}, {committed} committed, {accepted} of {setting.drafts} to accept"
        here = Rows((2,), (committed,), ((pending,),))
        proposal = bench.propose(here, [setting.drafts])
        wanted = reference.propose(here, setting.drafts, slot=0)
        compare_proposals(name, wanted, proposal)
        rows = Rows((2,), (committed,), ((pending, *wanted.tokens[0].tolist()),))
        bonus = next(words)
        verdict = verdict_of(rows, [accepted + 1], [bonus], setting.drafts + 1, setting.device)
        step = bench.step(rows)
        features, _ = bench.forward(step)
        bench.keep(step, features, verdict)
        reference.verify_and_keep(
            rows, verdict_of(rows, [accepted + 1], [bonus], setting.drafts + 1, "cpu"), 0
        )
        committed, pending = committed + accepted + 1, bonus
        compare_drafts(name, reference, bench, 2, committed)


def check_nothing_to_draft_from(setting: Setting, vocabulary: int) -> None:
    """A prompt of one token has no hidden to draft from: no draft is counted, on either side."""
    reference, bench = ReferenceBench(setting), FastBench(setting)
    reference.start(0, (3,))
    bench.start(0, (3,))
    here = Rows((0,), (0,), ((3,),))
    assert bench.propose(here, [setting.drafts]).counts.tolist() == [0]
    assert reference.propose(here, setting.drafts, slot=0).counts.tolist() == [0]


def check_reused_slot(setting: Setting, vocabulary: int) -> None:
    """The first drafts in a slot that was used before are those of a fresh engine."""
    long, short = prompts(vocabulary, (90, 6), seed=44)
    used, fresh = FastBench(setting), FastBench(setting)
    used.start(0, long)
    used.release(0)
    found = []
    for bench in (used, fresh):
        bench.start(0, short)
        found.append(bench.propose(Rows((0,), (5,), ((short[-1],),)), [setting.drafts]).tokens.tolist())
    assert found[0] == found[1], f"drafts {found[0]}, those of a fresh engine {found[1]}"


def compare_drafts(name: str, reference: ReferenceBench, bench: FastBench, slot: int, committed: int) -> None:
    """Draft states of a slot of the engine and slot 0 of the reference."""
    expected, actual = reference.draft_state(0, committed), bench.draft_state(slot, committed)
    if not committed:
        actual.pop("chained")
    compare_states(name, expected, actual, bench.setting)


def compare_proposals(name: str, expected: Proposal, actual: Proposal) -> None:
    """Tokens and counts exactly; q as a dense law, so that a one-hot row and a point mass are the same."""
    assert actual.counts.tolist() == expected.counts.tolist(), f"{name}: counts {actual.counts.tolist()}"
    have, want = actual.tokens.tolist(), expected.tokens.tolist()
    assert have == want, f"{name}: drafts {have}, expected {want}"
    width = int(max(_ids(expected).max(), _ids(actual).max())) + 1
    assert_close(f"q, {name}", _dense(expected, width), _dense(actual, width), tolerance("q", "float32"))


def _ids(proposal: Proposal) -> torch.Tensor:
    return (proposal.tokens[..., None] if proposal.candidates is None else proposal.candidates).cpu()


def _dense(proposal: Proposal, width: int) -> torch.Tensor:
    ids = _ids(proposal)
    q = torch.ones(ids.shape) if proposal.q is None else proposal.q.cpu()
    return torch.zeros(*ids.shape[:2], width).scatter_add(2, ids, q)
