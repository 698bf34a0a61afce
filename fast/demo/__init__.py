"""The demo checkpoint that ships with the package, served when no model is named."""

from pathlib import Path

NAME = "ft-demo-qwen3_5"
FOLDER = Path(__file__).parent / "qwen3_5"
