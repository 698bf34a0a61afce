"""MTP drafting: against transformers' MTP layer run from scratch, and its life cycle at every accept count."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ft.reference.drafting import DraftChooser
from ft.reference.edits import RequestLaw
from ft.reference.families.qwen3_5.target import ReferenceTarget
from ft.reference.loop import generate, prefill, step_of
from ft.reference.proposers.mtp import MTPProposer
from ft.reference.types import Features, Sampling, Step, Verdict, Verification

from .live import live
from .rig import Model, error, load, run, state_error, step_of_requests, tokens

EXACT = 1e-10
BROKEN = 1e-3
DRAFTS = 3
KINDS = ("dense", "moe")


@dataclass
class Request:
    """One request under way: `text` is committed, `pending` is not."""

    model: Model
    target: ReferenceTarget
    proposer: MTPProposer
    text: list[int]
    pending: int

    @classmethod
    def start(cls, model: Model, prompt: Sequence[int], chunk: int = 64) -> "Request":
        target = model.target()
        proposer = model.proposer(target)
        prefill(target, proposer, prompt, chunk, 0)
        return cls(model, target, proposer, list(prompt[:-1]), prompt[-1])

    def step(self, ids: Sequence[int] = ()) -> Step:
        return step_of([self.pending, *ids], len(self.text), 0, ())

    def propose(self, drafts: int = DRAFTS) -> list[int]:
        proposal = self.proposer.propose(self.step(), torch.tensor([drafts]))
        drawn: list[int] = proposal.tokens[0, : int(proposal.counts[0])].tolist()
        return drawn

    def verify(self, drafts: Sequence[int], accepted: int, bonus: int) -> None:
        """Keep `accepted` of the drafts and emit `bonus` after them."""
        step, emitted = self.step(drafts), [*drafts[:accepted], bonus]
        features = run(self.target, step, [accepted + 1])
        padded = torch.full((1, len(drafts) + 1), -1)
        padded[0, : accepted + 1] = torch.tensor(emitted)
        verdict = Verdict(torch.tensor([accepted]), padded, torch.tensor([accepted + 1]))
        self.proposer.post_verify(step, features, verdict)
        self.text += [self.pending, *emitted[:-1]]
        self.pending = emitted[-1]

    def errors(self) -> dict[str, float]:
        """Draft state against that of a request that had this text as its prompt."""
        other = Request.start(self.model, [*self.text, self.pending])
        length = len(self.text)
        return state_error(other.proposer.state(0, length), self.proposer.state(0, length))


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_library_layer_from_scratch(kind: str, tiny: dict[str, Path]) -> None:
    """After a prompt, and again after a verify that kept 2 of 4 rows."""
    model, other = load(tiny[kind]), live(kind, tiny[kind])
    layer, vocabulary = other.mtp_layer(), model.config.vocabulary
    request = Request.start(model, tokens(71, vocabulary, seed=1), chunk=23)
    for _ in range(2):
        text, pending = request.text, request.pending
        hidden = other.forward(text).hidden_states[-1][0]
        ids, drafts = [*text[1:], pending], request.propose()
        for draft in drafts:
            rows = other.mtp(layer, ids, hidden)
            assert error(rows, own_rows(request, ids, hidden)) < EXACT
            assert int((rows[-1] @ other.model.lm_head.weight.T).argmax()) == draft
            ids, hidden = [*ids, draft], torch.cat([hidden, rows[-1:]])
        chained = request.proposer.chained[0]
        assert error(other.mtp(layer, [*text[1:], pending], hidden[: len(text)])[-1], chained) < EXACT
        request.verify(drafts, 1, 5)


def own_rows(request: Request, ids: Sequence[int], hidden: Tensor) -> Tensor:
    """Our network over all slots at once, in plain text."""
    return scratch_rows(request.proposer, ids, hidden, torch.arange(len(ids)).expand(3, -1))


def scratch_rows(proposer: MTPProposer, ids: Sequence[int], hidden: Tensor, rope: Tensor) -> Tensor:
    """Our network over all slots at once, in request slot 7."""
    proposer.network.reset(7)
    return proposer.network.forward(7, torch.tensor(ids), hidden, torch.arange(len(ids)), rope)


@pytest.mark.parametrize("chunk", [1, 5, 64, 1000])
def test_prompt_chunks_do_not_matter(chunk: int, tiny: dict[str, Path]) -> None:
    """The last slot of a chunk pairs with the real next token of the prompt."""
    model = load(tiny["dense"])
    request = Request.start(model, tokens(70, 97, seed=2), chunk)
    assert len(request.text) == 69
    assert max(request.errors().values()) < EXACT


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_every_accept_count_round_after_round(drafts: int, tiny: dict[str, Path]) -> None:
    request = Request.start(load(tiny["dense"]), tokens(6, 97, seed=3))
    for turn, accepted in enumerate([*range(drafts + 1), drafts, 0, 0, drafts]):
        proposed = request.propose(drafts)
        assert len(proposed) == drafts
        request.verify(proposed, accepted, turn)
        assert max(request.errors().values()) < EXACT
        assert request.propose(drafts) == Request.start(
            request.model, [*request.text, request.pending]
        ).propose(drafts)


def test_the_chooser_is_asked_for_the_positions_after_the_pending_token(tiny: dict[str, Path]) -> None:
    asked: list[tuple[int, int]] = []

    class Recorder:
        def choose(
            self, logits: Tensor, positions: Tensor, slots: Tensor, drafted: Tensor
        ) -> tuple[Tensor, None, None]:
            asked.append((int(slots[0]), int(positions[0])))
            return logits.argmax(-1), None, None

    model = load(tiny["dense"])
    target = model.target()
    proposer = model.proposer(target, Recorder())
    prefill(target, proposer, tokens(6, 97), 64, 2)
    proposer.propose(step_of([3], 5, 2, ()), torch.tensor([DRAFTS]))
    assert asked == [(2, 6), (2, 7), (2, 8)], "the pending token stands at 5"


def test_a_chain_goes_on_along_three_axes_from_the_pending_token(tiny: dict[str, Path]) -> None:
    """After an image the axes run behind the index; draft slot i keeps the rope position of target row i."""
    model, ids = load(tiny["dense"]), tokens(12, 97, seed=6)
    rope = torch.tensor(
        [[0, 1, 2, 2, 2, 2, 3, 4, 5], [0, 1, 2, 2, 3, 3, 3, 4, 5], [0, 1, 2, 3, 2, 3, 3, 4, 5]]
    )
    target = model.target()
    proposer = model.proposer(target)
    step = replace(step_of(ids[:9], 0, 0, (), prefill=True), rope_positions=rope[:, None])
    features = run(target, step)
    proposer.on_prefill(step, features, torch.tensor([ids[1:10]]))
    pending = replace(step_of([ids[9]], 9, 0, ()), rope_positions=torch.full((3, 1, 1), 6))
    drafts = proposer.propose(pending, torch.tensor([DRAFTS])).tokens[0].tolist()
    text, hidden, axes = ids[1:10], features.final_hidden[0], rope
    for turn, draft in enumerate(drafts):
        rows = scratch_rows(proposer, text, hidden, axes)
        assert int(proposer.network.logits(rows[-1]).argmax()) == draft
        text, hidden = [*text, draft], torch.cat([hidden, rows[-1:]])
        axes = torch.cat([axes, torch.full((3, 1), 6 + turn)], 1)
    written = dict(vars(proposer.network))["caches"]
    scratch_rows(proposer, text[:-1], hidden[:-1], axes[:, :-1])
    assert error(written[7].keys, written[0].keys) < EXACT and len(written[0].keys) == 9 + DRAFTS - 1
    scratch_rows(proposer, text[:-1], hidden[:-1], torch.arange(9 + DRAFTS - 1).expand(3, -1))
    assert error(written[7].keys, written[0].keys) > BROKEN, "the index is not the rope position"


def after_one_verify(model: Model) -> Request:
    request = Request.start(model, tokens(6, 97, seed=3))
    request.verify(request.propose(), 2, 1)
    return request


def test_broken_life_cycles_are_seen(tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain's own rows survive a verify, or the rows pair with tokens that were not emitted."""
    model, right = load(tiny["dense"]), MTPProposer._extend

    def chain_survives(self: MTPProposer, step: Step, hidden: Tensor, ids: Tensor, kept: Tensor) -> None:
        cache = dict(vars(self.network))["caches"][0]
        before = cache.keys
        right(self, step, hidden, ids, kept)
        cache.keys[: len(before)] = before[: len(cache.keys)]

    def own_tokens(self: MTPProposer, step: Step, hidden: Tensor, ids: Tensor, kept: Tensor) -> None:
        right(self, step, hidden, ids if step.prefill else step.token_ids, kept)

    for twin in (chain_survives, own_tokens):
        monkeypatch.setattr(MTPProposer, "_extend", twin)
        request = after_one_verify(model)
        monkeypatch.setattr(MTPProposer, "_extend", right)
        assert max(request.errors().values()) > BROKEN, twin.__name__


def test_a_row_too_few_is_seen(tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, right = load(tiny["dense"]), MTPProposer.post_verify

    def short(self: MTPProposer, step: Step, features: Features, verdict: Verdict) -> None:
        right(self, step, features, replace(verdict, cut=verdict.cut - 1))

    monkeypatch.setattr(MTPProposer, "post_verify", short)
    with pytest.raises(AssertionError, match="draft.keys: shape"):
        after_one_verify(model).errors()


def test_a_prompt_of_one_token_drafts_from_the_second_step_on(tiny: dict[str, Path]) -> None:
    request = Request.start(load(tiny["dense"]), [4])
    assert request.propose() == []
    request.verify([], 0, 9)
    assert len(request.propose()) == DRAFTS and max(request.errors().values()) < EXACT


def test_a_reset_slot_has_nothing_to_draft_from(tiny: dict[str, Path]) -> None:
    request = Request.start(load(tiny["dense"]), tokens(9, 97))
    assert request.propose()
    request.proposer.reset(0)
    assert request.propose() == []


def test_requests_with_other_counts_and_laws_share_a_proposal(tiny: dict[str, Path]) -> None:
    """A greedy request beside one that draws its drafts: a point mass is q = 1 in column 0."""
    model = load(tiny["dense"], torch.float32)
    target = model.target()
    drawn = Sampling(temperature=1.0, verification=Verification.REJECTION)
    chooser = DraftChooser(
        {0: RequestLaw(Sampling(), 0), 1: RequestLaw(drawn, 3), 2: RequestLaw(Sampling(), 0)}
    )
    proposer, plain = model.proposer(target, chooser), Request.start(model, tokens(9, 97, 0))
    for slot in (0, 1):
        prefill(target, proposer, tokens(9, 97, slot), 64, slot)
    step = step_of_requests([[plain.pending], [7], [3]], [8, 8, 0], [0, 1, 2])
    proposal = proposer.propose(step, torch.tensor([2, 3, 3]))
    assert proposal.counts.tolist() == [2, 3, 0], "slot 2 has no committed token"
    assert proposal.tokens[0, :2].tolist() == plain.propose(2)
    assert proposal.candidates is not None and proposal.q is not None
    assert proposal.q[0, :2, 0].tolist() == [1.0, 1.0] and not proposal.q[0, :, 1:].any()
    assert torch.equal(proposal.candidates[0, :2, 0], proposal.tokens[0, :2])
    assert error(torch.ones(3), proposal.q[1].sum(-1)) < 1e-6 and bool((proposal.q[1, :, 0] < 1).all())
    assert all(token in row for token, row in zip(proposal.tokens[1], proposal.candidates[1], strict=True))


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, seed=5)], ids=["greedy", "coupled"]
)
def test_the_text_with_drafts_is_the_text_without(
    sampling: Sampling, drafts: int, tiny: dict[str, Path]
) -> None:
    model = load(tiny["dense"])

    def text(count: int) -> tuple[int, ...]:
        target = model.target()
        proposer = model.proposer(target, DraftChooser({0: RequestLaw(sampling, 5)})) if count else None
        prompt = tokens(11, 97, seed=4)
        return generate(
            target, proposer, prompt, sampling, drafts=count, max_tokens=20, context=4096, chunk=64, seed=5
        ).tokens

    assert text(drafts) == text(0)
