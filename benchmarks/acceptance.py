"""How well the demo's draft guesses: tokens a step, acceptance by position, repeated 8-grams, and that the text is
the same without speculation.

    python -m benchmarks.acceptance --model fast/demo/qwen3_5 --prompts fast/demo/prompts.json
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from ft.fast.build import build
from ft.fast.engine import Engine
from ft.fast.facts import make_plan
from ft.fast.inputs import Flags
from ft.fast.request import Request, Update
from ft.fast.tally import tally
from ft.reference.types import Sampling, Verification

MODES = {"greedy": Sampling(), "coupled": Sampling(temperature=1.0, seed=1)}
"""Text with drafts is text without, so one draw is enough."""

DRAWN = {"rejection": Verification.REJECTION, "block": Verification.BLOCK}
"""Text with drafts is another text of the same law: means over seeds."""


@dataclass(frozen=True)
class Outcome:
    """Updates by request, and the wall-clock of all of them."""

    updates: dict[str, list[Update]]
    seconds: float

    def tokens(self, name: str) -> list[int]:
        return [token for update in self.updates[name] for token in update.tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--draws", type=int, default=10, help="seeds of rejection and block")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    figures = measure(arguments)
    print(json.dumps(figures, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of every mode; greedy and coupled text must not change with speculation."""
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    texts = [item["text"] for item in json.loads(arguments.prompts.read_text())]
    prompts = [tuple(tokenizer.encode(text).ids) for text in texts]
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name()
        if "cuda" in arguments.device
        else platform.processor() or "cpu",
        "torch": torch.__version__,
        "drafts": arguments.drafts,
        "prompts": len(prompts),
        "tokens": arguments.tokens,
    }
    for mode, sampling in MODES.items():
        requests = [Request(str(i), p, arguments.tokens, sampling) for i, p in enumerate(prompts)]
        on = drain(engine_of(arguments, "mtp", arguments.drafts), requests)
        off = drain(engine_of(arguments, "off", None), requests)
        differ = [request.id for request in requests if on.tokens(request.id) != off.tokens(request.id)]
        figures[mode] = figures_of(on) | {"texts_that_differ_from_off": len(differ)}
    for mode, verification in DRAWN.items():
        draws = []
        for seed in tqdm(range(arguments.draws), desc=mode, file=sys.stderr):
            sampling = Sampling(temperature=1.0, seed=seed, verification=verification)
            requests = [Request(str(i), p, arguments.tokens, sampling) for i, p in enumerate(prompts)]
            draws.append(figures_of(drain(engine_of(arguments, "mtp", arguments.drafts), requests)))
        figures[mode] = mean_of(draws)
    return figures


def mean_of(draws: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over draws, and the two figures that matter draw by draw."""
    accepted = [draw["acceptance_by_position"] for draw in draws]
    names = ("tokens_per_step", "repeated_8_grams", "tokens_per_second")
    return {
        **{name: round(fmean(draw[name] for draw in draws), 3) for name in names},
        "acceptance_by_position": [round(fmean(place), 3) for place in zip(*accepted, strict=True)],
        "draws": len(draws),
        "first_draft_by_draw": [places[0] for places in accepted],
        "tokens_per_step_by_draw": [draw["tokens_per_step"] for draw in draws],
    }


def engine_of(arguments: argparse.Namespace, algorithm: str, drafts: int | None) -> Engine:
    flags = Flags(
        model=arguments.model,
        speculative_algorithm=algorithm,
        speculative_num_steps=drafts,
        device=arguments.device,
        dtype=arguments.dtype,
        context_length=512,
    )
    return build(make_plan(flags))


def drain(engine: Engine, requests: Sequence[Request]) -> Outcome:
    """Run all requests to their ends."""
    for request in requests:
        engine.add(request)
    updates: dict[str, list[Update]] = {request.id: [] for request in requests}
    started = time.monotonic()
    while not engine.idle:
        for update in engine.step():
            updates[update.request_id].append(update)
    return Outcome(updates, time.monotonic() - started)


def figures_of(outcome: Outcome) -> dict[str, Any]:
    """Tokens a step, acceptance by position (of the drafts offered there), repeated 8-grams, all requests together."""
    total = tally([update for listed in outcome.updates.values() for update in listed], outcome.seconds)
    repeats = [repeated(outcome.tokens(name)) for name in outcome.updates]
    return {
        "tokens_per_step": round(total.tokens_per_step, 3),
        "acceptance_by_position": [round(share, 3) for share in total.acceptance],
        "repeated_8_grams": round(sum(repeats) / len(repeats), 3),
        "tokens_per_second": round(total.tokens_per_second, 1),
    }


def repeated(tokens: Sequence[int], size: int = 8) -> float:
    """Share of n-grams that stood before."""
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


if __name__ == "__main__":
    main()
