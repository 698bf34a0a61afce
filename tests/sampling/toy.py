"""A toy target: logits are a table over a hash of the whole prefix, a running sum that must be committed exactly."""

import torch
from torch import Tensor

from ft.reference.drafting import Chooser
from ft.reference.types import Features, Proposal, Step, Verdict

STATES = 4093


class ToyTarget:
    """Implements protocol.Target. A hidden row is the hash after that row, [B, R, 1]; state is hash and length."""

    def __init__(self, vocabulary: int = 11, seed: int = 0, slots: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = 2 * torch.randn(STATES, vocabulary, generator=generator)
        self.hash = torch.zeros(slots, dtype=torch.int64)
        self.length = torch.zeros(slots, dtype=torch.int64)
        self.staged = torch.zeros(slots, 0, dtype=torch.int64)

    @property
    def vocabulary(self) -> int:
        return self.table.shape[1]

    def forward(self, step: Step) -> Features:
        assert torch.equal(step.positions[:, 0], self.length[step.slots]), (
            "a step starts at the committed length"
        )
        running, rows = self.hash[step.slots], []
        for row in range(step.rows):
            running = (running * 131 + step.token_ids[:, row] * 17 + 7) % STATES
            rows.append(running)
        self.staged = torch.stack(rows, 1)
        return Features(self.staged[..., None].float())

    def logits(self, hidden: Tensor) -> Tensor:
        return self.table[hidden[..., 0].long()]

    def commit(self, step: Step, kept: Tensor) -> None:
        for index, slot in enumerate(step.slots.tolist()):
            if kept[index]:
                self.hash[slot] = self.staged[index, int(kept[index]) - 1]
            self.length[slot] += kept[index]


class ShortCommit(ToyTarget):
    """Fault: the state of the last kept row is lost; the length is right."""

    def commit(self, step: Step, kept: Tensor) -> None:
        length = self.length + kept
        super().commit(step, torch.where(kept > 1, kept - 1, kept))
        self.length = length


class WholeCommit(ToyTarget):
    """Fault: the state moves over the rejected rows too; the length is right."""

    def commit(self, step: Step, kept: Tensor) -> None:
        length = self.length + kept
        super().commit(step, step.valid)
        self.length = length


class NoisyProposer:
    """Drafts by a chooser from logits that know nothing: a table over the position. Implements protocol.Proposer."""

    name = "noisy"
    taps: tuple[int, ...] = ()
    radix_lookahead = False

    def __init__(self, chooser: Chooser, vocabulary: int) -> None:
        self.chooser = chooser
        self.table = torch.randn(512, vocabulary, generator=torch.Generator().manual_seed(1))
        self.prefilled: list[tuple[int, int]] = []
        self.verified: list[tuple[int, int]] = []

    def on_prefill(self, step: Step, features: Features, next_ids: Tensor) -> None:
        for position, token in zip(step.positions[0].tolist(), next_ids[0].tolist(), strict=True):
            self.prefilled.append((position + 1, token))

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        start = int(step.positions[0, 0]) + 1
        chosen: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
        for row in range(int(counts[0])):
            before = torch.tensor([[int(choice[0]) for choice in chosen]], dtype=torch.int64).reshape(1, -1)
            place = torch.tensor([start + row])
            chosen.append(self.chooser.choose(self.table[start + row][None], place, step.slots, before))
        tokens = torch.stack([choice[0] for choice in chosen], 1)
        candidates = [choice[1] for choice in chosen if choice[1] is not None]
        q = [choice[2] for choice in chosen if choice[2] is not None]
        if not q:
            return Proposal(tokens, counts)
        return Proposal(tokens, counts, torch.stack(candidates, 1), torch.stack(q, 1))

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        start = int(step.positions[0, 0]) + 1
        for row in range(int(verdict.cut[0])):
            self.verified.append((start + row, int(verdict.emitted[0, row])))
