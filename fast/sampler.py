"""The sampler as the rest of the engine uses it."""

from ft.fast.drafting import choose_drafts
from ft.fast.edits import Editor, MaskSource
from ft.fast.logprobs import StepLogprobs, step_logprobs
from ft.fast.sampling import SamplingRows, law
from ft.fast.verify import Judged, Uniforms, verify

__all__ = [
    "Editor",
    "Judged",
    "MaskSource",
    "SamplingRows",
    "StepLogprobs",
    "Uniforms",
    "choose_drafts",
    "law",
    "step_logprobs",
    "verify",
]
