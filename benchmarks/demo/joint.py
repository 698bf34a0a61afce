"""Fine-tuning of trunk and MTP layer together, so that the trunk's final hidden carries what the second token needs.

The trunk keeps its own next-token loss; the draft's loss, against the trunk's detached law, also reaches the trunk
through the hidden it is fed. Afterwards the MTP layer is settled on the trunk as it is stored.
"""

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.demo.model import Block, Parameters, Shape, block, hidden, linear
from benchmarks.demo.mtp import drafted_from
from benchmarks.demo.tokens import windows
from benchmarks.demo.training import LENGTH, Budget, Report, optimise

WEIGHTS = (1.5, 0.8, 0.5)
"""Of the draft steps; the first one is what every later one stands on."""


def train_joint(
    trunk: Parameters,
    draft: Parameters,
    ids: Tensor,
    shape: Shape,
    budget: Budget,
    seed: int,
    run: Block = block,
) -> Report:
    """Both are trained in place."""
    draw = torch.Generator(device=ids.device).manual_seed(seed)

    def loss(done: float) -> Tensor:
        batch = windows(ids, budget.batch, LENGTH, draw)
        final = hidden(batch, trunk, shape, torch.bfloat16, run)
        scores = linear(final, trunk["model.embed_tokens.weight"]).float()
        total = functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        laws = torch.softmax(scores.detach(), dim=-1)
        for weight, missed in zip(WEIGHTS, missing(draft, trunk, batch, final, laws, shape), strict=True):
            total = total + weight * missed
        return total

    return optimise(trunk | draft, budget, loss, "joint")


def settle(
    trunk: Parameters, draft: Parameters, ids: Tensor, shape: Shape, budget: Budget, seed: int
) -> Report:
    """Train the draft alone on a frozen trunk, for coverage."""
    draw = torch.Generator(device=ids.device).manual_seed(seed)

    def loss(done: float) -> Tensor:
        batch = windows(ids, budget.batch, LENGTH, draw)
        with torch.no_grad():
            final = hidden(batch, trunk, shape, torch.bfloat16)
            laws = torch.softmax(linear(final, trunk["model.embed_tokens.weight"]).float(), dim=-1)
        parts = missing(draft, trunk, batch, final, laws, shape)
        weighted = [weight * part for weight, part in zip(WEIGHTS, parts, strict=True)]
        return torch.stack(weighted).sum()

    return optimise(draft, budget, loss, "settle")


def missing(
    draft: Parameters, trunk: Parameters, batch: Tensor, final: Tensor, laws: Tensor, shape: Shape
) -> list[Tensor]:
    """For each step: 1 - sum min(p, q), with a little cross entropy that keeps q from dying out."""
    found = []
    for p, q_log in drafted_from(draft, trunk, batch, final, laws, shape):
        entropy = -(p * q_log).sum(-1).mean()
        found.append(0.1 * entropy + 1.0 * (1 - torch.minimum(p, q_log.exp()).sum(-1).mean()))
    return found
