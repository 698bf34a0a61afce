"""The sampler as the rest of the engine uses it."""

from ft.fast.drafting import choose_drafts
from ft.fast.sampling import SamplingRows, law
from ft.fast.verify import Judged, Uniforms, verify

__all__ = ["Judged", "SamplingRows", "Uniforms", "choose_drafts", "law", "verify"]
