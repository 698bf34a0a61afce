"""The verify kernels by graph replay, against the plain torch verify and the time of one read of the logits.

python -m benchmarks.verify [--json benchmarks/results/verify.json]
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from ft.fast import sampler
from ft.kernels import verify as kernels
from ft.reference.types import Proposal, Sampling, Verification

REQUESTS = (1, 4, 16)
DRAFTS = 7
VOCABULARY = 248320
CHOICES = 16
BANDWIDTH = 4.2e12
"""Bytes a second that an H200 reads; the floor is one read of the logits at this rate."""

REPLAYS = 100
EAGER = 10

CASES = {
    "greedy": Sampling(),
    "rejection, top-k 20, top-p 0.95": Sampling(temperature=0.8, top_k=20, top_p=0.95),
    "rejection, no filter": Sampling(temperature=0.8),
    "rejection, top-p 0.95": Sampling(temperature=0.8, top_p=0.95),
    "coupled, top-k 20, top-p 0.95": Sampling(temperature=0.8, top_k=20, top_p=0.95, seed=1),
    "coupled, no filter": Sampling(temperature=0.8, seed=1),
    "block, top-k 20, top-p 0.95": Sampling(
        temperature=0.8, top_k=20, top_p=0.95, verification=Verification.BLOCK
    ),
}


@dataclass(frozen=True)
class Inputs:
    """One verify of B requests that are all sampled alike."""

    logits: Tensor
    proposal: Proposal
    rows: sampler.SamplingRows
    positions: Tensor
    uniforms: sampler.Uniforms


@dataclass(frozen=True)
class Figure:
    """Microseconds. differing: rows of `emitted` that are not those of plain torch. slow: rows cut by bisection."""

    case: str
    requests: int
    graph: float
    eager: float
    floor: float
    differing: int
    slow: int
    accepted: float
    samples: list[float]


def make(requests: int, sampling: Sampling) -> Inputs:
    """Peaked rows: normal logits of deviation 3, and 16 candidates that stand out, of which q knows roughly."""
    generator = torch.Generator("cuda").manual_seed(requests)
    shape = (requests, DRAFTS + 1)
    logits = 3 * torch.randn(*shape, VOCABULARY, generator=generator, device="cuda")
    candidates = torch.randint(0, VOCABULARY, (*shape, CHOICES), generator=generator, device="cuda")
    peaks = 16 + 2 * torch.randn(candidates.shape, generator=generator, device="cuda")
    logits = logits.scatter(2, candidates, peaks).to(torch.bfloat16)
    near = peaks + torch.randn(peaks.shape, generator=generator, device="cuda")
    q = torch.softmax(near / 0.8, -1)[:, :DRAFTS].contiguous()
    candidates = candidates[:, :DRAFTS].contiguous()
    place = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(requests, DRAFTS, 1)
    return Inputs(
        logits,
        Proposal(
            candidates.gather(2, place)[..., 0],
            torch.full((requests,), DRAFTS, device="cuda"),
            candidates,
            q,
        ),
        sampler.SamplingRows.of([sampling] * requests, range(requests), "cuda"),
        torch.arange(100, 100 + requests, device="cuda"),
        sampler.Uniforms(
            torch.rand(requests, DRAFTS, generator=generator, device="cuda"),
            torch.rand(requests, generator=generator, device="cuda"),
        ),
    )


def call(inputs: Inputs, space: kernels.Workspace, injected: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, proposal = inputs.rows, inputs.proposal
    return kernels.verify(
        inputs.logits,
        proposal.tokens,
        proposal.counts,
        proposal.candidates,
        proposal.q,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.seed,
        rows.mode,
        inputs.positions,
        inputs.uniforms.coins if injected else None,
        inputs.uniforms.final if injected else None,
        space,
        rows.modes,
        rows.filtered,
    )


def timed(function: Callable[[], object], repeats: int) -> list[float]:
    """Microseconds of each of `repeats` calls."""
    for _ in range(3):
        function()
    samples = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        samples.append(1000 * start.elapsed_time(end))
    return samples


def measure(name: str, requests: int, sampling: Sampling) -> Figure:
    """Checked first, then captured and replayed."""
    inputs = make(requests, sampling)
    space = kernels.workspace(requests, DRAFTS + 1, VOCABULARY, "cuda", CHOICES)
    accepted, emitted, _ = call(inputs, space, True)
    slow = int(space.row_slow.sum())
    expected = sampler.verify(inputs.logits, inputs.proposal, inputs.rows, inputs.positions, inputs.uniforms)
    differing = int((emitted != expected.emitted).any(-1).sum())

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(inputs, space, False)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(inputs, space, False)
    samples = timed(graph.replay, REPLAYS)
    eager = timed(
        lambda: sampler.verify(inputs.logits, inputs.proposal, inputs.rows, inputs.positions), EAGER
    )
    return Figure(
        case=name,
        requests=requests,
        graph=statistics.median(samples),
        eager=statistics.median(eager),
        floor=1e6 * inputs.logits.nbytes / BANDWIDTH,
        differing=differing,
        slow=slow,
        accepted=float(accepted.double().mean()),
        samples=samples,
    )


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.verify needs a CUDA GPU and torch sees none", file=sys.stderr)
        sys.exit(2)
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit(),
        "shape": f"{DRAFTS} drafts, vocabulary {VOCABULARY}, bf16, {CHOICES} candidates",
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    columns = ("B", "graph us", "eager us", "floor us", "differing", "slow", "accepted")
    print(f"{'case':34}" + "".join(f"{column:>11}" for column in columns))
    figures = []
    for name, sampling in CASES.items():
        for requests in REQUESTS:
            one = measure(name, requests, sampling)
            figures.append(one)
            print(
                f"{one.case:34}{one.requests:>11}{one.graph:>11.1f}{one.eager:>11.0f}{one.floor:>11.1f}"
                f"{one.differing:>11}{one.slow:>11}{one.accepted:>11.2f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({**about, "figures": [asdict(one) for one in figures]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
