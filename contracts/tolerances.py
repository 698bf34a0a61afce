"""Tolerances by (quantity, dtype), each derived from the dtype's epsilon and the reductions behind it.

A reduction of n terms in fp32 loses about eps * sqrt(n) relative to its RMS when roundings are independent
(Higham, Accuracy and Stability, 3.1); a quantity behind d such reductions, each feeding the next through norms
that keep the scale, about eps * sqrt(n * d). The tiny models have n <= 96 a reduction and at most 8 layers of 6
reductions: sqrt(96 * 48) * 6e-8 = 4e-6. The gated recurrence adds a product of up to 100 decays and divides by
norms that can be small, measured at 30 times that on random weights (two fp32 orders of the same formulas, against
fp64). The limit on the worst element is 30 times the limit on the RMS: five standard deviations of a sum with a
heavy tail over 1e4 elements.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """Limits relative to the RMS of the expected tensor."""

    rms: float
    worst: float


EPSILON = {"float32": 2.0**-24, "bfloat16": 2.0**-9}
"""Unit roundoff."""

GAIN = {"logits": 2048.0, "hidden": 2048.0, "kv": 2048.0, "state": 2048.0, "conv": 2048.0, "q": 4096.0}
"""Roundoffs that each quantity may be off by, in RMS: 70 of a chain of reductions times 30 of the recurrence."""


def tolerance(quantity: str, dtype: str) -> Tolerance:
    """Limits of a quantity in an engine of `dtype`. KeyError names what is unknown."""
    rms = EPSILON[dtype] * GAIN[quantity]
    return Tolerance(rms=rms, worst=30 * rms)


def quantity_of(state: str) -> str:
    """The kind of a named per-request state, such as layer3.keys or chained."""
    kind = state.rpartition(".")[2]
    return {"keys": "kv", "values": "kv", "recurrent": "state", "conv": "conv", "chained": "hidden"}[kind]
