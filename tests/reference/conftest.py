"""Tiny checkpoints, written once a session."""

from pathlib import Path

import pytest
import torch

from ft.reference.families.qwen3_5.tiny import write_tiny

torch.set_grad_enabled(False)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of a tiny -> its checkpoint folder. For reading only."""
    root = tmp_path_factory.mktemp("tiny")
    for name in ("dense", "moe", "trunk"):
        write_tiny(name, root / name, seed=11)
    return {name: root / name for name in ("dense", "moe", "trunk")}
