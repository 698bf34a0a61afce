"""Log probabilities of emitted tokens, always the target's (verify_sampling 8).

Totals are integers, as in `sampling`, so a row's values do not depend on what stands beside it: they are the same
with speculation and without.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ft.fast.sampling import UNIT, SamplingRows, sanitised, scores, units
from ft.reference.types import Verification

SIGN = 0x7FFFFFFF
ID_BITS = 22


@dataclass(frozen=True)
class StepLogprobs:
    """Of each emitted token: its own fp32 [B, R], and the likeliest ids int64 [B, R, N] with theirs fp32 [B, R, N]."""

    chosen: Tensor
    ids: Tensor
    values: Tensor


def step_logprobs(
    raw: Tensor, edited: Tensor, emitted: Tensor, rows: SamplingRows, processed: Tensor, count: int
) -> StepLogprobs:
    """Of the tokens emitted int64 [B, R], -1 where none; token i comes from row i of raw and edited logits [B, R, V].

    processed: bool [B], requests that ask for the law after every stage; the others get the model's own.
    """
    parts = []
    for index in range(emitted.shape[1]):
        own = log_softmax(sanitised(raw[:, index])[0])
        law = log_law(edited[:, index], rows)
        row = torch.where(processed[:, None], law, own)
        ids, values = likeliest(row, min(count, row.shape[1]))
        chosen = row.gather(1, emitted[:, index : index + 1].clamp(min=0))[:, 0]
        parts.append((chosen, ids, values))
    return StepLogprobs(*(torch.stack(part, dim=1) for part in zip(*parts, strict=True)))


def log_softmax(row: Tensor) -> Tensor:
    """fp32 [B, V] of sanitised rows; a row with no finite entry gives NaN."""
    centred = row.double() - row.amax(-1, keepdim=True).double()
    total = units(torch.exp(centred)).sum(-1, keepdim=True).double() / UNIT
    return (centred - torch.log(total)).to(torch.float32)


def log_law(edited: Tensor, rows: SamplingRows) -> Tensor:
    """fp32 [B, V] of edited logits: after stage 11 for sampled requests, after stage 6 for greedy ones."""
    row, _ = sanitised(edited)
    greedy = log_softmax(row)
    if rows.modes <= {Verification.GREEDY}:
        return greedy
    sampled = log_softmax(scores(row, rows))
    return torch.where((rows.mode == Verification.GREEDY)[:, None], greedy, sampled)


def likeliest(row: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids int64 [B, count] and values of the largest entries of fp32 [B, V], larger first, lower id first.

    Values and ids are packed into one key, so that no two are equal and the choice depends on no order of work.
    """
    bits = row.contiguous().view(torch.int32)
    rising = torch.where(bits < 0, bits ^ SIGN, bits).long()
    last = (1 << ID_BITS) - 1
    ids = torch.arange(row.shape[1], device=row.device)
    keys = (rising << ID_BITS) | (last - ids)
    top = last - (torch.topk(keys, count, dim=-1, sorted=True).values & last)
    return top, row.gather(1, top)
