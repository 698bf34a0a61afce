"""MTP drafting as it is defined: a chain of one-row passes, re-extended with target rows after every verify.

The chain's own keys and values never survive a verify, and a request of one prompt token has nothing to draft
from (specs qwen3_5 5.4, 5.5).
"""

from typing import Protocol

import torch
from torch import Tensor

from ft.reference.drafting import Chooser
from ft.reference.types import Features, Proposal, Step, Verdict


class DraftNetwork(Protocol):
    """What a family provides; one request a call."""

    def reset(self, slot: int) -> None: ...

    def forward(
        self, slot: int, ids: Tensor, hidden: Tensor, positions: Tensor, rope_positions: Tensor
    ) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def state(self, slot: int, committed: int) -> dict[str, Tensor]: ...


class MTPProposer:
    """Implements protocol.Proposer. `chained` holds the draft hidden of slot C-1 of each request."""

    name = "mtp"
    taps: tuple[int, ...] = ()
    radix_lookahead = True

    def __init__(self, network: DraftNetwork, chooser: Chooser) -> None:
        self.network = network
        self.chooser = chooser
        self.chained: dict[int, Tensor] = {}

    def reset(self, slot: int) -> None:
        """A new request sits in `slot`."""
        self.network.reset(slot)
        self.chained.pop(slot, None)

    def on_prefill(self, step: Step, features: Features, next_ids: Tensor) -> None:
        self._extend(step, features.final_hidden, next_ids, step.valid)

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        self._extend(step, features.final_hidden, verdict.emitted, verdict.cut)

    def _extend(self, step: Step, hidden: Tensor, ids: Tensor, kept: Tensor) -> None:
        for index in range(step.requests):
            count, slot = int(kept[index]), int(step.slots[index])
            if count:
                output = self.network.forward(
                    slot,
                    ids[index, :count],
                    hidden[index, :count],
                    step.positions[index, :count],
                    step.rope_positions[:, index, :count],
                )
                self.chained[slot] = output[-1]

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        """Requests are drafted for one by one; padding drafts are 0."""
        chains = [self._chain(step, index, int(count)) for index, count in enumerate(counts)]
        width = int(counts.max()) if counts.numel() else 0
        counted = torch.tensor([len(chain) for chain in chains])
        tokens = torch.zeros(len(chains), width, dtype=torch.int64)
        laws = [law for chain in chains for law in chain if law[1] is not None]
        if not laws:
            for index, chain in enumerate(chains):
                tokens[index, : len(chain)] = torch.tensor(
                    [int(token) for token, _, _ in chain], dtype=torch.int64
                )
            return Proposal(tokens, counted)
        size = next(ids.shape[0] for _, ids, _ in laws if ids is not None)
        # A point mass among drawn drafts is q = 1 in column 0.
        candidates = torch.zeros(len(chains), width, size, dtype=torch.int64)
        q = torch.zeros(len(chains), width, size)
        for index, chain in enumerate(chains):
            for place, (token, ids, law) in enumerate(chain):
                tokens[index, place] = token
                if ids is None or law is None:
                    candidates[index, place], q[index, place, 0] = token, 1.0
                else:
                    candidates[index, place], q[index, place] = ids, law
        return Proposal(tokens, counted, candidates, q)

    def _chain(self, step: Step, index: int, count: int) -> list[tuple[Tensor, Tensor | None, Tensor | None]]:
        slot, position = int(step.slots[index]), int(step.positions[index, 0])
        if slot not in self.chained:
            return []
        hidden = self.chained[slot]
        rope = step.rope_positions[:, index, :1]
        chain: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
        for draft in range(count):
            if draft:
                place = torch.tensor([position + draft - 1])
                hidden = self.network.forward(
                    slot, chain[-1][0][None], hidden[None], place, rope + draft - 1
                )[0]
            logits = self.network.logits(hidden)[None].float()
            decided = torch.tensor([position + 1 + draft])
            before = torch.tensor([[int(token) for token, _, _ in chain]], dtype=torch.int64).reshape(1, -1)
            tokens, candidates, q = self.chooser.choose(
                logits, decided, step.slots[index : index + 1], before
            )
            chain.append((tokens[0], _first(candidates), _first(q)))
        return chain

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Draft keys and values of a request's committed slots, and the hidden that its next chain starts from."""
        named = self.network.state(slot, committed)
        return {**named, "chained": self.chained[slot]} if slot in self.chained else named


def _first(values: Tensor | None) -> Tensor | None:
    return None if values is None else values[0]
