"""What the trained network computes for one held-out prompt, fp32: expected values for the stored checkpoint.

python -m benchmarks.demo.golden --demo fast/demo --out tests/goldens/demo
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.demo import evaluate, export, mtp
from benchmarks.demo.model import CHUNK, hidden, logits

PROMPT = 0
EVERY = 16
"""Logits are kept for each EVERYth row and the last."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--demo", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_file(expected(arguments.demo), arguments.out / "expected.safetensors")


@torch.no_grad()
def expected(demo: Path) -> dict[str, Tensor]:
    """ids [T], rows [N], logits [N, V] at those rows, and the greedy drafts [k] that follow the top token of the
    last row."""
    parameters, shape, tokenizer = export.read(demo / "qwen3_5")
    text = json.loads((demo / "prompts.json").read_text())[PROMPT]["text"]
    ids = tokenizer.encode(text).ids
    padded = torch.tensor([[*ids, *[0] * (-len(ids) % CHUNK)]])
    found = logits(hidden(padded, parameters, shape, torch.float32), parameters)[0]
    rows = torch.tensor([*range(0, len(ids) - 1, EVERY), len(ids) - 1])
    pending = int(found[len(ids) - 1].argmax())
    drafts = evaluate.drafts_after([*ids, pending], parameters, parameters, shape, mtp.UNROLLED)
    values = {"rows": rows, "logits": found[rows], "drafts": torch.tensor(drafts)}
    return {"ids": torch.tensor(ids), "pending": torch.tensor([pending]), **values}


if __name__ == "__main__":
    main()
