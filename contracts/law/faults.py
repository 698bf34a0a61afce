"""A plain verify with one planted fault, which the enumeration must see."""

import torch
from torch import Tensor

from ft.contracts.law.enumeration import Box, Paths
from ft.contracts.law.exact import exact_law
from ft.reference.types import Sampling

FAULTS = (
    "residual is p",
    "q subtracted at the draft only",
    "accept u < p(x), subtract q",
    "q judged at 0.9 T",
    "q judged at 0.99 T",
    "bonus drawn from the row before",
    "residual drawn from the row after",
    "residual not clipped",
    "equal candidates overwrite",
)


def faulty_box(sampling: Sampling, fault: str | None) -> Box:
    """A plain batched verify of trusted rows with one planted fault; with None it is right."""
    laws: dict[tuple[float, ...], list[float]] = {}

    def law(row: Tensor) -> list[float]:
        key = tuple(row.tolist())
        if key not in laws:
            laws[key] = exact_law(key, sampling)
        return laws[key]

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        p = torch.tensor([[law(row) for row in rows] for rows in paths.logits], dtype=torch.float64)
        told = paths.q.double()
        if fault in ("q judged at 0.9 T", "q judged at 0.99 T"):
            told = told ** (1 / float(fault.split()[3]))
        told = told / told.sum(-1, keepdim=True)
        dense = torch.zeros_like(p[:, :-1])
        if fault == "equal candidates overwrite":
            q = dense.scatter(2, paths.candidates, told)
        else:
            q = dense.scatter_add(2, paths.candidates, told)
        emitted = torch.full((len(coins), paths.width), -1)
        for index in range(len(coins)):
            run = one(p[index], q[index], paths.drafts[index].tolist(), coins[index], float(final[index]))
            emitted[index, : len(run)] = torch.tensor(run)
        return emitted

    def one(p: Tensor, q: Tensor, drafts: list[int], coins: Tensor, final: float) -> list[int]:
        accepted = len(drafts)
        for row, draft in enumerate(drafts):
            judge = 1.0 if fault == "accept u < p(x), subtract q" else float(q[row, draft])
            if not float(coins[row]) * judge < float(p[row, draft]):
                accepted = row
                break
        row = accepted
        if accepted == len(drafts):
            return drafts + [
                inverse(p[row - 1 if fault == "bonus drawn from the row before" else row], final)
            ]
        mass = p[row + 1] if fault == "residual drawn from the row after" else p[row]
        subtracted = q[row].clone()
        if fault == "residual is p":
            subtracted = torch.zeros_like(subtracted)
        if fault == "q subtracted at the draft only":
            subtracted[torch.arange(len(subtracted)) != drafts[row]] = 0
        residual = mass - subtracted
        residual = residual.abs() if fault == "residual not clipped" else residual.clamp(min=0)
        return drafts[:row] + [inverse(residual if residual.sum() > 0 else p[row], final)]

    return box


def inverse(mass: Tensor, u: float) -> int:
    """The first token whose cumulated mass exceeds u times the total."""
    cdf = torch.cumsum(mass, 0)
    return int((cdf <= u * cdf[-1]).sum())
