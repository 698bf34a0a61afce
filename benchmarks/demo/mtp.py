"""Training of the demo's MTP layer on the frozen trunk, unrolled as it drafts.

Step s of the chain that starts at row i stands at slot i+s-1. It takes token i+s and the hidden of step s-1 (the
trunk's final hidden for s = 1), and sees the first-step keys of slots 0..i and the chain's own keys: what a draft
sees when it runs. It learns the trunk's law of token i+s+1.
"""

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.demo.model import (
    Heads,
    Parameters,
    Shape,
    feed_forward,
    heads_of,
    hidden,
    joined,
    linear,
    norm,
)
from benchmarks.demo.tokens import windows
from benchmarks.demo.training import LENGTH, Budget, Report, optimise

UNROLLED = 3
LAYER = "mtp.layers.0."


def train_mtp(
    draft: Parameters, trunk: Parameters, ids: Tensor, shape: Shape, budget: Budget, seed: int
) -> Report:
    """The draft parameters are trained in place: cross entropy with the trunk's law at first, and the part of it
    that is not covered, 1 - sum min(p, q), from the middle on."""
    draw = torch.Generator(device=ids.device).manual_seed(seed)

    def loss(done: float) -> Tensor:
        batch = windows(ids, budget.batch, LENGTH, draw)
        total = torch.zeros((), device=ids.device)
        for p, q_log in unrolled(draft, trunk, batch, shape):
            entropy = -(p * q_log).sum(-1).mean()
            missed = 1 - torch.minimum(p, q_log.exp()).sum(-1).mean()
            total = total + (entropy if done < 0.5 else 0.2 * entropy + 2.0 * missed)
        return total / UNROLLED

    return optimise(draft, budget, loss, "mtp")


def unrolled(
    draft: Parameters, trunk: Parameters, batch: Tensor, shape: Shape
) -> list[tuple[Tensor, Tensor]]:
    """For each step: the trunk's law and the log of the draft's, [B, T - UNROLLED, V] fp32."""
    with torch.no_grad():
        final = hidden(batch, trunk, shape, torch.bfloat16)
        laws = torch.softmax(linear(final, trunk["model.embed_tokens.weight"]).float(), dim=-1)
    return drafted_from(draft, trunk, batch, final, laws, shape)


def drafted_from(
    draft: Parameters, trunk: Parameters, batch: Tensor, final: Tensor, laws: Tensor, shape: Shape
) -> list[tuple[Tensor, Tensor]]:
    """The same, from the trunk's final hidden [B, T, H] and its laws [B, T, V]."""
    rows = batch.shape[1] - UNROLLED
    chain: list[Heads] = []
    carried, found = final[:, :rows], []
    for step in range(1, UNROLLED + 1):
        ids = batch[:, step : step + rows]
        positions = torch.arange(step - 1, step - 1 + rows, device=batch.device)
        carried = draft_step(ids, carried, draft, trunk, positions, chain, shape)
        q_log = functional.log_softmax(linear(carried, trunk["model.embed_tokens.weight"]).float(), dim=-1)
        found.append((laws[:, step : step + rows], q_log))
    return found


def draft_step(
    ids: Tensor,
    carried: Tensor,
    draft: Parameters,
    trunk: Parameters,
    positions: Tensor,
    chain: list[Heads],
    shape: Shape,
) -> Tensor:
    """One step for every start row at once: [B, N, H] after mtp.norm. `chain` grows by this step's heads."""
    embedded = functional.embedding(ids, trunk["model.embed_tokens.weight"]).to(carried.dtype)
    parts = [
        norm(embedded, draft["mtp.pre_fc_norm_embedding.weight"]),
        norm(carried, draft["mtp.pre_fc_norm_hidden.weight"]),
    ]
    x = linear(torch.cat(parts, dim=-1), draft["mtp.fc.weight"])
    inner = norm(x, draft[f"{LAYER}input_layernorm.weight"])
    heads = heads_of(inner, draft, f"{LAYER}self_attn.", positions, shape)
    chain.append(heads)
    mixed = _attend(heads.query, chain, shape)
    x = x + joined(mixed, heads.gate, draft[f"{LAYER}self_attn.o_proj.weight"])
    return norm(feed_forward(x, draft, LAYER), draft["mtp.norm.weight"])


def _attend(query: Tensor, chain: list[Heads], shape: Shape) -> Tensor:
    """First-step keys of rows 0..i, and this chain's later keys, one a step."""
    group = shape.heads // shape.kv_heads
    keys = [heads.key.repeat_interleave(group, 1) for heads in chain]
    values = [heads.value.repeat_interleave(group, 1) for heads in chain]
    rows = query.shape[2]
    lower = torch.ones(rows, rows, dtype=torch.bool, device=query.device).tril()
    scores = [(query @ keys[0].mT).masked_fill(~lower, float("-inf"))]
    scores += [(query * key).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.softmax(torch.cat(scores, dim=-1).float() * shape.head_dim**-0.5, dim=-1).to(query.dtype)
    mixed = weights[..., :rows] @ values[0]
    for index, value in enumerate(values[1:]):
        mixed = mixed + weights[..., rows + index : rows + index + 1] * value
    return mixed


@torch.no_grad()
def coverage(draft: Parameters, trunk: Parameters, ids: Tensor, shape: Shape) -> list[float]:
    """Mean sum min(p, q) of each step over held-out windows: the acceptance of sampled drafts at T = 1."""
    count = min(32, ids.shape[0] // LENGTH)
    starts = torch.arange(count, device=ids.device)[:, None] * LENGTH
    batch = ids[starts + torch.arange(LENGTH, device=ids.device)].long()
    found = unrolled(draft, trunk, batch, shape)
    return [float(torch.minimum(p, q_log.exp()).sum(-1).mean()) for p, q_log in found]
