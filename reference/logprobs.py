"""Log probabilities of emitted tokens, always the target's (verify_sampling 8)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ft.reference.sampling import law, sanitised
from ft.reference.types import Sampling, Verification


def raw_logprobs(logits: Tensor) -> Tensor:
    """fp32 [V]: the log-softmax of a row as the model gave it, before any stage."""
    row, _ = sanitised(logits)
    return torch.log_softmax(row.double(), 0).float()


def processed_logprobs(edited: Tensor, sampling: Sampling) -> Tensor:
    """fp32 [V] of an edited row: after stage 11 for a sampled request, after stage 6 for a greedy one."""
    if sampling.mode() == Verification.GREEDY:
        return raw_logprobs(edited)
    return law(edited, sampling).double().log().float()


def logprobs_of(
    run: Sequence[int], logits: Tensor, edited: Tensor, sampling: Sampling
) -> list[tuple[float, float]]:
    """(raw, processed) of the tokens of a run, token i from row i of logits and edited logits [R, V]."""
    return [
        (float(raw_logprobs(row)[token]), float(processed_logprobs(changed, sampling)[token]))
        for token, row, changed in zip(run, logits, edited, strict=False)
    ]


def most_likely(logprobs: Tensor, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest ids with their log probabilities, larger first, lower id first."""
    ordered, ids = torch.sort(logprobs, descending=True, stable=True)
    return list(zip(ids[:count].tolist(), ordered[:count].tolist(), strict=True))
