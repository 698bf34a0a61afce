"""Verifies as black boxes: the reference's, the fast one, and variants with a planted fault."""

from dataclasses import replace

import torch
from torch import Tensor

from ft.fast import sampler
from ft.reference.types import Proposal, Sampling, Verification
from ft.reference.verify import Uniforms, verify

from .enumeration import Box, Paths
from .exact import exact_law


def reference_box(sampling: Sampling, told: bool = True) -> Box:
    """The reference, request by request. told: whether it hears of q at all."""

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        emitted = torch.full((len(coins), paths.width), -1)
        for index in range(len(coins)):
            count = int(paths.counts[index])
            judged = verify(
                paths.logits[index, : count + 1],
                paths.drafts[index, :count].tolist(),
                sampling,
                seed=0,
                position=1,
                candidates=paths.candidates[index] if told else None,
                q=paths.q[index] if told else None,
                uniforms=Uniforms(coins[index].tolist(), float(final[index])),
            )
            emitted[index, : len(judged.emitted)] = torch.tensor(judged.emitted)
        return emitted

    return box


def fast_box(sampling: Sampling, told: bool = True) -> Box:
    """The engine's verify, all paths in one launch."""

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        return run_fast(paths, [sampling] * len(coins), coins, final, told).emitted

    return box


def run_fast(
    paths: Paths, samplings: list[Sampling], coins: Tensor, final: Tensor, told: bool = True
) -> sampler.Judged:
    rows = sampler.SamplingRows.of(samplings, [index % 97 for index in range(len(samplings))])
    proposal = Proposal(paths.drafts, paths.counts, *((paths.candidates, paths.q) if told else (None, None)))
    positions = torch.arange(len(coins)) % 89
    return sampler.verify(paths.logits, proposal, rows, positions, sampler.Uniforms(coins, final))


def mixed_box(sampling: Sampling) -> Box:
    """The fast verify with a greedy and a coupled copy of every path in the same launch.

    The copies must say what they say alone, whatever the coins.
    """
    greedy = replace(sampling, temperature=0.0)
    coupled = replace(sampling, verification=Verification.COUPLED)

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        count = len(coins)
        three = Paths(*(torch.cat([part] * 3) for part in vars(paths).values()))
        samplings = [sampling] * count + [greedy] * count + [coupled] * count
        mixed = run_fast(three, samplings, coins.repeat(3, 1), final.repeat(3)).emitted
        noise = torch.rand(coins.shape)
        for index, one in ((1, greedy), (2, coupled)):
            rows = sampler.SamplingRows.of([one] * count, [(index * count + i) % 97 for i in range(count)])
            alone = sampler.verify(
                paths.logits,
                Proposal(paths.drafts, paths.counts),
                rows,
                torch.arange(index * count, (index + 1) * count) % 89,
                sampler.Uniforms(noise, final),
            )
            assert torch.equal(mixed[index * count : (index + 1) * count], alone.emitted)
        return mixed[:count]

    return box


def spread_box(sampling: Sampling, live: list[int], vocabulary: int) -> Box:
    """The fast verify over a vocabulary of which only `live` ids have finite logits, at the edges of tiles."""
    ids = torch.tensor(live)
    back = torch.full((vocabulary + 1,), -2)
    back[ids], back[-1] = torch.arange(len(live)), -1

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        logits = torch.full((*paths.logits.shape[:2], vocabulary), -torch.inf)
        logits[..., ids] = paths.logits
        spread = replace(paths, drafts=ids[paths.drafts], candidates=ids[paths.candidates], logits=logits)
        return back[run_fast(spread, [sampling] * len(coins), coins, final).emitted]

    return box


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
