"""A checkpoint without weight files: every tensor asked for is random, for trying a shape out."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from ft.reference.weights.safetensors import Checkpoint


class DummyCheckpoint(Checkpoint):
    """Answers for every name but that of an extra head. bf16, from a fixed seed."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self._draw = torch.Generator().manual_seed(seed)

    @property
    def names(self) -> list[str]:
        """A name of each part that a family may look for."""
        return ["mtp.fc.weight"]

    def has(self, name: str) -> bool:
        return name != "lm_head.weight"

    def take(self, name: str, shape: Iterable[int]) -> Tensor:
        """Small random values, scaled so that a matrix keeps the size of what it multiplies."""
        size = tuple(shape)
        noise = torch.randn(size, generator=self._draw)
        return (noise * (size[-1] ** -0.5 if len(size) > 1 else 0.1)).to(torch.bfloat16)

    def finish(self, ignored: tuple[str, ...] = (), within: tuple[str, ...] = ("",)) -> None:
        """Nothing is left over."""
