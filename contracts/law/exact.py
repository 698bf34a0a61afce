"""The law of a row straight from the definition, in fp64 and Python loops: what both engines are held against."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ft.reference.types import Edits, Sampling


@dataclass(frozen=True)
class Setup:
    """What the laws of a model's rows depend on besides its logits. grammar: from the output to the ids allowed."""

    sampling: Sampling
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    grammar: Callable[[tuple[int, ...]], frozenset[int]] | None = None

    def law(self, logits: Sequence[float], after: Sequence[int]) -> list[float]:
        """The law of a row whose step has emitted or drafted `after` before it."""
        return exact_law(exact_edits(logits, self, (*self.output, *after)), self.sampling)


def exact_edits(logits: Sequence[float], setup: Setup, output: tuple[int, ...]) -> list[float]:
    """verify_sampling 2, stages 1 to 6."""
    edits: Edits = setup.sampling.edits
    bias = dict(edits.logit_bias)
    forced = thought_over(edits, output)
    if forced is not None:
        return [0.0 if token == forced else -math.inf for token in range(len(logits))]
    changed = []
    for token, z in enumerate(logits):
        z += bias.get(token, 0.0)
        count = output.count(token)
        if count or token in setup.prompt:
            z = z / edits.repetition_penalty if z > 0 else z * edits.repetition_penalty
        z -= edits.frequency_penalty * count + edits.presence_penalty * (count > 0)
        changed.append(-math.inf if banned(token, setup, output) else z)
    return changed


def banned(token: int, setup: Setup, output: tuple[int, ...]) -> bool:
    """Whether some stage leaves the token no chance."""
    edits, text = setup.sampling.edits, setup.prompt + output
    if edits.allowed_ids is not None and token not in edits.allowed_ids:
        return True
    if token in setup.stop_ids and len(output) < edits.min_tokens:
        return True
    if setup.grammar is not None and token not in setup.grammar(output):
        return True
    return any((*text, token)[-len(word) :] == word for word in edits.bad_words)


def thought_over(edits: Edits, output: tuple[int, ...]) -> int | None:
    """The id that an exhausted thinking budget forces."""
    if edits.thinking is None:
        return None
    budget, end = edits.thinking.tokens, edits.thinking.end
    thought = "".join(f"<{token}>" for token in output[:budget])
    if len(output) < budget or "".join(f"<{token}>" for token in end) in thought:
        return None
    place = len(output) - budget
    return end[place] if place < len(end) else None


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
