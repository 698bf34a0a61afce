"""The sampler as the rest of the engine uses it."""

from typing import Protocol

from torch import Tensor

from ft.fast.drafting import choose_drafts
from ft.fast.edits import Editor, MaskSource
from ft.fast.logprobs import StepLogprobs, step_logprobs
from ft.fast.sampling import SamplingRows, law
from ft.fast.verify import Judged, Uniforms, verify
from ft.reference.types import Proposal

__all__ = [
    "Editor",
    "Judged",
    "MaskSource",
    "SamplingRows",
    "StepLogprobs",
    "Uniforms",
    "Verify",
    "choose_drafts",
    "law",
    "step_logprobs",
    "verify",
]


class Verify(Protocol):
    """How a backend judges drafts; `verify.verify` says what it means."""

    def __call__(
        self, logits: Tensor, proposal: Proposal, rows: SamplingRows, positions: Tensor
    ) -> Judged: ...
