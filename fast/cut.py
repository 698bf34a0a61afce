"""Where each run ends, on the device: stop ids, the token budget, the context (verify_sampling 7)."""

import torch
from torch import Tensor

FINISH_NONE = 0
FINISH_STOP = 1
FINISH_LENGTH = 2


def cut(
    emitted: Tensor,
    accepted: Tensor,
    stop_ids: Tensor,
    generated: Tensor,
    max_tokens: Tensor,
    committed: Tensor,
    context: int,
) -> tuple[Tensor, Tensor]:
    """How many tokens of each run are emitted, m int64 [B], and the finish code int64 [B] of the last one.

    emitted: int64 [B, R], accepted + 1 tokens each. stop_ids: int64 [B, S], -1 where unused. generated:
    tokens emitted before this step. committed: C, so token i of a run has absolute index C + 1 + i; a request
    holds at most `context` tokens, prompt included. The first token that ends a request is its last; a stop
    id wins over a limit at the same token.
    """
    index = torch.arange(emitted.shape[1], device=emitted.device)
    stops = (emitted[:, :, None] == stop_ids[:, None, :]).any(-1)
    spent = generated[:, None] + index + 1 >= max_tokens[:, None]
    full = committed[:, None] + index + 2 >= context
    event = (stops | spent | full) & (index <= accepted[:, None])
    first = torch.where(event, index, emitted.shape[1]).amin(-1)
    kept = torch.minimum(first, accepted) + 1
    stopped = stops.gather(1, kept[:, None] - 1)[:, 0]
    code = torch.where(stopped, FINISH_STOP, FINISH_LENGTH)
    return kept, torch.where(first <= accepted, code, FINISH_NONE)
