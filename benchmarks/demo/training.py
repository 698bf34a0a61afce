"""Training of the demo's trunk: AdamW, warm-up and cosine, as many steps as the minutes allow."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from benchmarks.demo.model import Block, Parameters, Shape, block, hidden, linear
from benchmarks.demo.tokens import windows

LENGTH = 512
WARM_UP = 100
CALIBRATION = 20
"""Steps whose time decides how many there will be."""


@dataclass(frozen=True)
class Report:
    """What a training did. losses: (step, nats a token) now and then."""

    steps: int
    tokens: int
    seconds: float
    losses: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Budget:
    """minutes: wall-clock for the loop; batch: windows a step; peak: highest learning rate."""

    minutes: float
    batch: int
    peak: float
    most_steps: int = 1_000_000


def optimise(parameters: Parameters, budget: Budget, loss_of: Callable[[float], Tensor], name: str) -> Report:
    """Step until the minutes are over; loss_of takes the share of the training that is done, 0 to 1."""
    for value in parameters.values():
        value.requires_grad_(True)
    matrices = [value for value in parameters.values() if value.ndim > 1]
    vectors = [value for value in parameters.values() if value.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=budget.peak, betas=(0.9, 0.95), fused=vectors[0].is_cuda)
    losses: list[tuple[int, float]] = []
    steps, started, bar = 0, time.monotonic(), tqdm(desc=name, unit="step", mininterval=5)
    for step, rate, done in schedule(budget, started):
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = loss_of(done)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimiser.step()
        bar.update()
        steps += 1
        if step % 100 == 0:
            losses.append((step, float(loss.detach())))
            bar.set_postfix(loss=f"{losses[-1][1]:.3f}", rate=f"{rate:.1e}")
    bar.close()
    for value in parameters.values():
        value.requires_grad_(False)
    return Report(steps, steps * budget.batch * LENGTH, time.monotonic() - started, tuple(losses))


def schedule(budget: Budget, started: float) -> Iterator[tuple[int, float, float]]:
    """Step number, learning rate and share done. The number of steps is fixed once step times are known."""
    total = float(budget.most_steps)
    begun = started
    step = 0
    while step < total:
        if step == CALIBRATION:
            begun = _now()
        if step == 4 * CALIBRATION:
            pace = (_now() - begun) / (3 * CALIBRATION)
            left = budget.minutes * 60 - (_now() - started)
            total = min(total, step + max(1, int(left / pace)))
        done = min(1.0, step / total) if step >= 4 * CALIBRATION else 0.0
        warm = min(1.0, (step + 1) / WARM_UP)
        yield step, budget.peak * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))), done
        step += 1


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()


def train_trunk(
    parameters: Parameters, ids: Tensor, shape: Shape, budget: Budget, seed: int, run: Block = block
) -> Report:
    """Next-token cross entropy over random windows; the parameters are trained in place."""
    draw = torch.Generator(device=ids.device).manual_seed(seed)

    def loss(done: float) -> Tensor:
        batch = windows(ids, budget.batch, LENGTH + 1, draw)
        return cross_entropy(parameters, batch, shape, run)

    return optimise(parameters, budget, loss, "trunk")


def cross_entropy(parameters: Parameters, batch: Tensor, shape: Shape, run: Block = block) -> Tensor:
    """Nats a token of int64 windows [B, T + 1]."""
    rows = hidden(batch[:, :-1], parameters, shape, torch.bfloat16, run)
    scores = linear(rows, parameters["model.embed_tokens.weight"]).float().flatten(0, 1)
    return functional.cross_entropy(scores, batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(parameters: Parameters, ids: Tensor, shape: Shape, most: int = 256) -> float:
    """Nats a token over consecutive windows of the held-out text."""
    count = min(most, (ids.shape[0] - 1) // LENGTH)
    starts = torch.arange(count, device=ids.device)[:, None] * LENGTH
    batch = ids[starts + torch.arange(LENGTH + 1, device=ids.device)].long()
    parts = [cross_entropy(parameters, part, shape) for part in torch.split(batch, 32)]
    return float(torch.stack(parts).mean())
