"""A target and its draft driven hook by hook, the engine's and the reference's alike, with verdicts chosen by the
contract: so every accept count is reached at every round, whatever the model would have said."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ft.contracts.rig import Setting, key_values
from ft.fast.caches.base import Lease
from ft.fast.engine import prompt_step
from ft.fast.pools.paged import PagedKV
from ft.fast.request import Request
from ft.fast.spec.mtp import MTPProposer
from ft.fast.spec.runner import SpecRunner
from ft.reference.types import Features, Proposal, Sampling, Step, Verdict


@dataclass(frozen=True)
class Rows:
    """Input rows of one verify: request slots, first positions and token ids, one list a request."""

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]


class FastBench:
    """The engine's parts without its loop. Slots are handed out by the contract."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.engine = setting.engine()
        runtime = self.engine.runtime
        assert isinstance(runtime, SpecRunner)
        self.runtime = runtime
        self.device = torch.device(setting.device)
        self._leases: dict[int, Lease] = {}

    @property
    def proposer(self) -> MTPProposer:
        assert isinstance(self.runtime.proposer, MTPProposer)
        return self.runtime.proposer

    @torch.inference_mode()
    def admit(
        self, slot: int, prompt: Sequence[int], sampling: Sampling | None = None, seed: int = 0
    ) -> None:
        """Put a request into `slot` with pages for the whole context, nothing prefilled."""
        request = Request(f"slot {slot}", tuple(prompt), 10_000, sampling or Sampling())
        lease = self.engine.scheduler.cache.admit(slot, request.prompt, self.setting.context)
        assert lease is not None, "the contract's pool is too small"
        self._leases[slot] = lease
        self.runtime.admit(slot, request, seed, self.setting.drafts)

    def release(self, slot: int) -> None:
        """End the request in `slot` and return its pages."""
        self.runtime.release(slot)
        self.engine.scheduler.cache.release(self._leases.pop(slot), ())

    @torch.inference_mode()
    def prefill(self, slot: int, prompt: Sequence[int]) -> None:
        """All of the prompt but its last token, on the setting's grid."""
        grid, last = self.setting.grid, len(prompt) - 1
        for start in range(0, last, grid):
            step, next_ids = prompt_step(prompt, start, min(start + grid, last), grid, slot, self.device)
            self.runtime.prefill(step, next_ids)
        self.runtime.activate(slot, last, prompt[-1])

    def start(
        self, slot: int, prompt: Sequence[int], sampling: Sampling | None = None, seed: int = 0
    ) -> None:
        self.admit(slot, prompt, sampling, seed)
        self.prefill(slot, prompt)

    def step(self, rows: Rows, rope: Tensor | None = None, taps: tuple[int, ...] = ()) -> Step:
        """The rows as one verify step, padded to the widest request; rope: int64 [3, B, R]."""
        width = max(len(ids) for ids in rows.ids)
        padded = [[*ids, *[0] * (width - len(ids))] for ids in rows.ids]
        positions = torch.tensor(rows.starts)[:, None] + torch.arange(width)
        rope = positions.expand(3, -1, -1) if rope is None else rope
        return Step(
            token_ids=torch.tensor(padded).to(self.device),
            positions=positions.to(self.device),
            rope_positions=rope.to(self.device),
            valid=torch.tensor([len(ids) for ids in rows.ids]).to(self.device),
            slots=torch.tensor(rows.slots).to(self.device),
            taps=taps,
        )

    @torch.inference_mode()
    def forward(self, step: Step) -> tuple[Features, Tensor]:
        """Features and logits [B, R, V]."""
        features = self.runtime.target.forward(step)
        return features, self.runtime.target.logits(features.final_hidden)

    @torch.inference_mode()
    def propose(self, rows: Rows, counts: Sequence[int]) -> Proposal:
        """Drafts after the pending tokens of `rows` (one id each)."""
        return self.proposer.propose(self.step(rows), torch.tensor(counts).to(self.device))

    @torch.inference_mode()
    def keep(self, step: Step, features: Features, verdict: Verdict) -> None:
        """Commit `verdict.cut` rows of the step, and bring the draft up to it."""
        self.runtime.target.commit(step, verdict.cut)
        if self.runtime.proposer is not None:
            self.runtime.proposer.post_verify(step, features, verdict)

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        """Every target state of a slot over its committed positions, copied."""
        return {name: value.clone() for name, value in self.runtime.target.state(slot, committed).items()}

    def draft_state(self, slot: int, committed: int) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.proposer.state(slot, committed).items()}

    def key_values(self) -> list[PagedKV]:
        """Every paged pool of the target and the draft."""
        return key_values(self.engine)


def verdict_of(rows: Rows, kept: Sequence[int], bonus: Sequence[int], width: int, device: str) -> Verdict:
    """The verdict that keeps `kept` rows of each request: its first kept - 1 drafts, then the bonus token."""
    emitted = torch.full((len(kept), width), -1, dtype=torch.int64)
    for index, (count, token) in enumerate(zip(kept, bonus, strict=True)):
        run = [*rows.ids[index][1:count], token]
        emitted[index, : len(run)] = torch.tensor(run)
    counts = torch.tensor(kept)
    return Verdict((counts - 1).to(device), emitted.to(device), counts.to(device))
