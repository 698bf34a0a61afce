"""The stored tokenizer folder, and how to break a copy of it."""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "goldens" / "tokenizer"


def change(folder: Path, name: str, **values: object) -> None:
    """Set entries of one of a folder's files."""
    path = folder / name
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))
