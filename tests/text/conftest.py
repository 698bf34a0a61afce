"""A tokenizer folder that a test may change."""

import shutil
from pathlib import Path

import pytest

from .stored import FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the stored folder."""
    for path in FOLDER.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path
