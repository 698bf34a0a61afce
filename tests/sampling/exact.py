"""The law of a row straight from the definition, in fp64 and Python loops: what both engines are held against."""

import math
from collections.abc import Sequence

from ft.reference.types import Sampling


def exact_law(logits: Sequence[float], sampling: Sampling) -> list[float]:
    """verify_sampling 2, stages 7 to 11, of finite or -inf logits [V]."""
    if sampling.temperature < 1e-5:
        best = max(range(len(logits)), key=lambda token: (logits[token], -token))
        return [float(token == best) for token in range(len(logits))]
    scaled = [z / sampling.temperature for z in logits]
    weight = {token: math.exp(z - max(scaled)) for token, z in enumerate(scaled)}
    weight = {token: w for token, w in weight.items() if w >= sampling.min_p}
    if 0 < sampling.top_k < len(weight):
        kth = sorted(weight.values())[-sampling.top_k]
        weight = {token: w for token, w in weight.items() if w >= kth}
    total, before = sum(weight.values()), 0.0
    kept: dict[int, float] = {}
    for token in sorted(weight, key=lambda token: (-weight[token], token)):
        if before >= sampling.top_p * total and kept:
            break
        kept[token] = weight[token]
        before += weight[token]
    total = sum(kept.values())
    return [kept.get(token, 0.0) / total for token in range(len(logits))]


def chi_square(counts: Sequence[int], law: Sequence[float]) -> float:
    """Pearson's statistic over all cells; a hit in a cell of probability 0 counts as infinite.

    ValueError when a cell expects fewer than 10 hits: merge cells or draw more.
    """
    total, statistic = sum(counts), 0.0
    for count, p in zip(counts, law, strict=True):
        expected = total * p
        if p == 0:
            statistic += math.inf if count else 0.0
        elif expected < 10:
            raise ValueError(f"a cell expects {expected:.1f} hits of {total}; the test needs 10")
        else:
            statistic += (count - expected) ** 2 / expected
    return statistic


CRITICAL_15 = 56.5
"""Chi-square with 15 degrees of freedom at a false alarm rate of 1e-6 (verify_sampling 14)."""
