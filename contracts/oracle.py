"""The reference behind the same calls as the engine's bench, one request a slot."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ft.contracts.bench import Rows
from ft.contracts.rig import Setting
from ft.fast.request import Request
from ft.reference.drafting import DraftChooser
from ft.reference.edits import Allowed, History, RequestLaw
from ft.reference.loop import Generation, generate, prefill
from ft.reference.registry import family_named
from ft.reference.types import Features, Proposal, Sampling, Step, Verdict
from ft.reference.weights.safetensors import Checkpoint


class ReferenceBench:
    """The reference target of a setting and, where the setting drafts with MTP, its proposer."""

    def __init__(self, setting: Setting) -> None:
        family = family_named(setting.family)
        config = family.read_config(setting.folder)
        self.target = family.target(Checkpoint(setting.folder), config)
        self.requests: dict[int, RequestLaw] = {}
        self.proposer = None
        if setting.proposer == "mtp":
            chooser = DraftChooser(self.requests)
            self.proposer = family.drafts["mtp"](Checkpoint(setting.folder), config, self.target, chooser)

    @property
    def layers(self) -> int:
        return int(self.target.config.layers)

    @torch.inference_mode()
    def start(
        self, slot: int, prompt: Sequence[int], sampling: Sampling | None = None, seed: int = 0
    ) -> None:
        """Prefill all of the prompt but its last token in one chunk."""
        self.requests[slot] = RequestLaw(sampling or Sampling(), seed, History(tuple(prompt)))
        self.target.reset(slot)
        if self.proposer is not None:
            self.proposer.reset(slot)
        prefill(self.target, self.proposer, prompt, max(1, len(prompt)), slot)

    @torch.inference_mode()
    def generate(
        self, request: Request, drafts: int, context: int, grammar: Allowed | None = None
    ) -> Generation:
        """The request decoded by the loop that defines decoding. Its sampling must have a seed."""
        sampling = request.sampling
        self.target.reset(0)
        if self.proposer is not None:
            self.proposer.reset(0)
        return generate(
            self.target,
            self.proposer,
            request.prompt,
            sampling,
            drafts=drafts,
            max_tokens=request.max_tokens,
            stop_ids=request.stop_ids,
            context=context,
            chunk=64,
            seed=sampling.seed or 0,
            grammar=grammar,
            laws=self.requests,
        )

    def step(self, rows: Rows, slot: int, rope: Tensor | None = None, taps: tuple[int, ...] = ()) -> Step:
        """The first request's rows as a step of `slot`."""
        positions = rows.starts[0] + torch.arange(len(rows.ids[0]))[None]
        return Step(
            token_ids=torch.tensor([rows.ids[0]]),
            positions=positions,
            rope_positions=positions.expand(3, -1, -1) if rope is None else rope,
            valid=torch.tensor([len(rows.ids[0])]),
            slots=torch.tensor([slot]),
            taps=taps,
        )

    @torch.inference_mode()
    def forward(self, step: Step) -> tuple[Features, Tensor]:
        """Features and logits [1, R, V]; the keys and values of the step's rows stay until they are overwritten."""
        features = self.target.forward(step)
        return features, self.target.logits(features.final_hidden)

    @torch.inference_mode()
    def propose(self, rows: Rows, count: int, slot: int) -> Proposal:
        assert self.proposer is not None, "this setting drafts nothing"
        proposal: Proposal = self.proposer.propose(self.step(rows, slot), torch.tensor([count]))
        return proposal

    @torch.inference_mode()
    def verify_and_keep(self, rows: Rows, verdict: Verdict, slot: int) -> None:
        """Forward the rows, commit `verdict.cut` of them, bring the draft up to it."""
        step = self.step(rows, slot)
        features = self.target.forward(step)
        self.target.commit(step, verdict.cut)
        if self.proposer is not None:
            self.proposer.post_verify(step, features, verdict)

    def state(self, slot: int, committed: int) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.target.state(slot, committed)
        return state

    def draft_state(self, slot: int, committed: int) -> dict[str, Tensor]:
        assert self.proposer is not None, "this setting drafts nothing"
        state: dict[str, Tensor] = self.proposer.state(slot, committed)
        return state
