"""Tiny and stored checkpoints as reference models, and steps of one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ft.reference.drafting import Chooser, DraftChooser
from ft.reference.edits import RequestLaw
from ft.reference.families.qwen3_5.cast import cast
from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.drafts import MTPDraft
from ft.reference.families.qwen3_5.load import load_mtp, load_target
from ft.reference.families.qwen3_5.parse import read
from ft.reference.families.qwen3_5.target import ReferenceTarget
from ft.reference.families.qwen3_5.weights import MTPWeights, TargetWeights
from ft.reference.proposers.mtp import MTPProposer
from ft.reference.types import Features, Sampling, Step
from ft.reference.weights.safetensors import Checkpoint

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "hf"
CASES = ("qwen3_5_dense", "qwen3_5_moe")
GREEDY: Chooser = DraftChooser({slot: RequestLaw(Sampling(), 0) for slot in range(8)})


@dataclass(frozen=True)
class Model:
    """Weights of a checkpoint folder in one dtype."""

    config: Config
    trunk: TargetWeights
    mtp: MTPWeights

    def target(self) -> ReferenceTarget:
        """A target with no requests in it."""
        return ReferenceTarget(self.config, self.trunk)

    def proposer(self, target: ReferenceTarget, chooser: Chooser = GREEDY) -> MTPProposer:
        return MTPProposer(MTPDraft(self.mtp, target), chooser)


def load(folder: Path, dtype: torch.dtype = torch.float64) -> Model:
    config = read(folder)
    trunk, mtp = load_target(Checkpoint(folder), config), load_mtp(Checkpoint(folder), config)
    return Model(config, cast(trunk, dtype), cast(mtp, dtype))


def golden(case: str, dtype: torch.dtype = torch.float64) -> tuple[Model, dict[str, Tensor]]:
    """A stored checkpoint and the values expected of it."""
    expected = load_file(GOLDENS / "expected" / f"{case}.safetensors")
    return load(GOLDENS / "checkpoints" / case, dtype), expected


def tokens(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(vocabulary, (count,), generator=draw).tolist()
    return ids


def step_of_requests(rows: Sequence[Sequence[int]], starts: Sequence[int], slots: Sequence[int]) -> Step:
    """Ragged rows of several requests, padded with token 0 at position 0."""
    width = max(len(ids) for ids in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    positions = torch.zeros_like(ids)
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
        positions[index, : len(row)] = start + torch.arange(len(row))
    valid = torch.tensor([len(row) for row in rows])
    return Step(ids, positions, positions.expand(3, -1, -1), valid, torch.tensor(slots))


def run(target: ReferenceTarget, step: Step, kept: Sequence[int] | None = None) -> Features:
    """Forward and commit `kept` rows of each request, all by default."""
    features = target.forward(step)
    target.commit(step, step.valid if kept is None else torch.tensor(kept))
    return features


def error(expected: Tensor, actual: Tensor, name: str = "values") -> float:
    """Largest difference; shapes must agree and every value must be finite."""
    assert expected.shape == actual.shape, (
        f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    assert bool(torch.isfinite(actual).all()) and bool(torch.isfinite(expected).all()), (
        "a value is not finite"
    )
    return float((expected.double() - actual.double()).abs().max()) if expected.numel() else 0.0


def state_error(expected: dict[str, Tensor], actual: dict[str, Any]) -> dict[str, float]:
    """`error` of every named state."""
    assert expected.keys() == actual.keys()
    return {name: error(expected[name], actual[name], name) for name in expected}
