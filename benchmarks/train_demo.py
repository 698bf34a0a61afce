"""Train the demo checkpoint: tokenizer, hybrid trunk, then its MTP layer on the frozen trunk; measure the drafts.

python -m benchmarks.train_demo --out fast/demo --minutes 6 --mtp-minutes 1.5
python -m benchmarks.train_demo --out fast/demo --only-measure
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.demo import evaluate, export, joint, mtp, tokens
from benchmarks.demo.card import card
from benchmarks.demo.corpus import Source, Used, sources
from benchmarks.demo.model import Block, Shape, block, initial, initial_mtp
from benchmarks.demo.training import LENGTH, Budget, Report, held_out_loss, train_trunk

PROMPTS = 50
PROMPT_TOKENS = 64
DRAFTS = 3
GENERATED = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for qwen3_5/, prompts.json, training.json"
    )
    parser.add_argument("--minutes", type=float, default=6.0, help="wall-clock of the trunk's training")
    parser.add_argument("--mtp-minutes", type=float, default=1.5)
    parser.add_argument("--batch", type=int, default=128, help="windows of 512 tokens a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile the blocks with torch.compile")
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny shape, a few steps, the standard library only"
    )
    parser.add_argument(
        "--only-measure", action="store_true", help="measure the checkpoint in --out; train nothing"
    )
    parser.add_argument("--no-measure", action="store_true", help="train only")
    parser.add_argument(
        "--joint-minutes", type=float, default=0.0, help="fine-tune trunk and MTP layer together"
    )
    parser.add_argument(
        "--joint-from", type=Path, metavar="FOLDER", help="fine-tune what an earlier run left in its --out"
    )
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.joint_from:
        refine(arguments, device)
    elif not arguments.only_measure:
        train(arguments, device)
    if not arguments.no_measure:
        measure(arguments.out, device, GENERATED // 20 if arguments.smoke else GENERATED, arguments.seed)


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    shape = export.smaller(Shape()) if arguments.smoke else Shape()
    started = time.monotonic()
    files, used = sources()
    if arguments.smoke:
        files = files[:300]
    say(started, f"{len(files)} files, {sum(len(file.text) for file in files) / 1e6:.1f} MB")
    tokenizer = tokens.train_tokenizer(files, arguments.seed)
    say(started, "tokenizer trained")
    learnt = tokens.encode(tokenizer, [file.text for file in files if not file.held_out], arguments.seed).to(
        device
    )
    held_out = tokens.encode(tokenizer, [file.text for file in files if file.held_out], arguments.seed).to(
        device
    )
    say(started, f"{learnt.shape[0] / 1e6:.1f} M tokens to learn, {held_out.shape[0] / 1e3:.0f} k held out")
    write_prompts(arguments.out / "prompts.json", files, tokenizer, arguments.seed)

    trunk = initial(shape, arguments.seed, device)
    budget = Budget(arguments.minutes, arguments.batch, 3e-3, 12 if arguments.smoke else 1_000_000)
    trunk_report = train_trunk(trunk, learnt, shape, budget, arguments.seed, blocks(arguments.compile))
    trunk = export.rounded(trunk)
    loss = held_out_loss(trunk, held_out, shape)
    say(started, f"trunk: {trunk_report.tokens / 1e6:.0f} M tokens seen, held out {loss:.3f} nats a token")
    export.write(arguments.out / "qwen3_5", trunk, shape, tokenizer)

    draft = initial_mtp(shape, arguments.seed + 1, device)
    budget = Budget(
        arguments.mtp_minutes, max(1, arguments.batch // 4), 2e-3, 12 if arguments.smoke else 1_000_000
    )
    draft_report = mtp.train_mtp(draft, trunk, learnt, shape, budget, arguments.seed + 1)
    draft = export.rounded(draft)
    covered = mtp.coverage(draft, trunk, held_out, shape)
    say(started, f"mtp: covers {', '.join(f'{share:.3f}' for share in covered)} of the trunk's law by step")
    export.write(arguments.out / "qwen3_5", trunk | draft, shape, tokenizer)
    record = record_of(
        arguments, device, used, learnt.shape[0], held_out.shape[0], loss, covered, trunk_report, draft_report
    )
    (arguments.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    say(started, "trained")


def refine(arguments: argparse.Namespace, device: torch.device) -> None:
    """Fine-tune a finished checkpoint's trunk and MTP layer together, on the same corpus and split."""
    started = time.monotonic()
    record = json.loads((arguments.joint_from / "training.json").read_text())
    parameters, shape, tokenizer = export.read(arguments.joint_from / "qwen3_5")
    trunk = {name: value.to(device) for name, value in parameters.items() if not name.startswith("mtp.")}
    draft = {name: value.to(device) for name, value in parameters.items() if name.startswith("mtp.")}
    files, _ = sources()
    if arguments.smoke:
        files = files[:300]
    # The first run's order, so that its held-out windows are measured again.
    learnt, held_out = (
        tokens.encode(tokenizer, [file.text for file in files if file.held_out == part], record["seed"]).to(
            device
        )
        for part in (False, True)
    )
    say(started, f"{learnt.shape[0] / 1e6:.1f} M tokens to learn")
    most = 3 if arguments.smoke else 1_000_000
    budget = Budget(0.8 * arguments.joint_minutes, arguments.batch, 1e-3, most)
    seed = arguments.seed + 2
    both = joint.train_joint(trunk, draft, learnt, shape, budget, seed, blocks(arguments.compile))
    trunk = export.rounded(trunk)
    say(
        started,
        f"joint: {both.steps} steps, held out {held_out_loss(trunk, held_out, shape):.3f} nats a token",
    )
    export.write(arguments.out / "qwen3_5", trunk | export.rounded(draft), shape, tokenizer)
    budget = Budget(0.2 * arguments.joint_minutes, arguments.batch, 7e-4, most)
    settled = joint.settle(trunk, draft, learnt, shape, budget, seed + 1)
    draft = export.rounded(draft)
    covered = mtp.coverage(draft, trunk, held_out, shape)
    say(started, f"settled: {settled.steps} steps, covers {', '.join(f'{share:.3f}' for share in covered)}")
    export.write(arguments.out / "qwen3_5", trunk | draft, shape, tokenizer)
    fine_tuning = {
        "command": f"python -m benchmarks.train_demo --joint-from FOLDER --joint-minutes {arguments.joint_minutes}"
        f" --batch {arguments.batch} --seed {arguments.seed}{' --compile' if arguments.compile else ''}",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "held_out_order": record["seed"],
        "trunk_and_mtp": asdict(both),
        "mtp_alone": asdict(settled),
        "held_out_nats": held_out_loss(trunk, held_out, shape),
        "held_out_coverage": list(covered),
    }
    record["joint"] = [*record.get("joint", []), fine_tuning]
    (arguments.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    prompts = (arguments.joint_from / "prompts.json").read_text()
    (arguments.out / "prompts.json").write_text(prompts)
    say(started, "refined")


def measure(out: Path, device: torch.device, count: int, seed: int) -> None:
    """Speculate with the checkpoint as stored, from its prompts; add the figures to training.json and write the card."""
    parameters, shape, tokenizer = export.read(out / "qwen3_5")
    parameters = {name: value.to(device) for name, value in parameters.items()}
    prompts = [tokenizer.encode(item["text"]).ids for item in json.loads((out / "prompts.json").read_text())]
    where = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU"
    found: dict[str, Any] = {
        "prompts": len(prompts),
        "tokens": count,
        "drafts": DRAFTS,
        "seed": seed,
        "device": where,
    }
    for mode, draw in (("greedy", None), ("sampled", torch.Generator(device=device).manual_seed(seed))):
        chooser = evaluate.Chooser(draw)
        texts = evaluate.speculate(parameters, parameters, shape, prompts, count, chooser, DRAFTS)
        found[mode] = asdict(evaluate.figures(texts, DRAFTS))
        if draw is not None:
            found[mode]["token_acceptance"] = evaluate.token_acceptance(texts, parameters, parameters, shape)
        print(mode, found[mode], flush=True)
    record = json.loads((out / "training.json").read_text()) | {"speculation": found}
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    size = sum(value.numel() for value in parameters.values())
    (out / "qwen3_5" / "README.md").write_text(card(record, size, LENGTH))


def blocks(compiled: bool) -> Block:
    """The blocks to run; compiled ones are traced once for each kind of layer."""
    if not compiled:
        return block
    traced: Block = torch.compile(block, dynamic=False)
    return traced


def say(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)


def write_prompts(path: Path, files: Sequence[Source], tokenizer: Any, seed: int) -> None:
    """Fifty distinct beginnings of held-out files, from as many packages as there are."""
    beginnings: dict[str, Source] = {}
    for file in files:
        ids = tokenizer.encode(file.text).ids if file.held_out else []
        if len(ids) > 4 * PROMPT_TOKENS:
            beginnings.setdefault(tokenizer.decode(ids[:PROMPT_TOKENS]), file)
    held_out = list(beginnings.items())
    random.Random(seed).shuffle(held_out)
    order: dict[str, list[tuple[str, Source]]] = {}
    for text, file in held_out:
        order.setdefault(file.package, []).append((text, file))
    chosen: list[tuple[str, Source]] = []
    while len(chosen) < min(PROMPTS, len(held_out)):
        chosen += [queue.pop() for queue in order.values() if queue]
    prompts = [
        {
            "package": file.package,
            "licence": file.licence,
            "file": file.name,
            "text": text,
        }
        for text, file in chosen[:PROMPTS]
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(prompts, indent=1) + "\n")


def record_of(
    arguments: argparse.Namespace,
    device: torch.device,
    used: Sequence[Used],
    learnt: int,
    held_out: int,
    loss: float,
    covered: Sequence[float],
    trunk: Report,
    draft: Report,
) -> dict[str, Any]:
    """Everything that a reader needs to judge the checkpoint or make it again."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {
        "command": f"python -m benchmarks.train_demo --minutes {arguments.minutes} --mtp-minutes {arguments.mtp_minutes}"
        f" --batch {arguments.batch} --seed {arguments.seed}{' --compile' if arguments.compile else ''}",
        "device": name,
        "torch": torch.__version__,
        "seed": arguments.seed,
        "corpus": [asdict(item) for item in used],
        "tokens": {"learnt": learnt, "held_out": held_out},
        "trunk": {**asdict(trunk), "held_out_nats": loss},
        "mtp": {**asdict(draft), "unrolled": mtp.UNROLLED, "held_out_coverage": list(covered)},
    }


if __name__ == "__main__":
    main()
