"""The model card, README.md, written from the record of the training and the figures of the draft."""

from typing import Any

HEAD = """---
license: apache-2.0
language: code
library_name: ft
tags: [speculative-decoding, mtp, qwen3_5]
---

# ft-demo-qwen3_5

A {million:.1f} M parameter hybrid model with one MTP layer, in the released form of the `qwen3_5` family (text only). It
exists so that speculative decoding can be tried and tested on real weights in seconds. It continues Python source; it
follows no instructions, and the chat template is there for the sake of the form: no chat was ever in its training data.

    ft generate "import numpy as np" --speculative-algorithm mtp --speculative-num-steps 3
"""

SHAPE = """
## Shape

8 layers, GatedDeltaNet and gated full attention 3:1; hidden 256, FFN 576; 4 query and 2 KV heads of 64, 16 of 64
dimensions rotated; 4 key and 8 value heads of 32 in the linear layers; 4096 byte-level BPE tokens; tied embeddings.
bf16, but `A_log` and `linear_attn.norm` fp32. The windows of its training had {length} tokens: the limit of 4096
positions in `config.json` is a limit of form, beyond {length} nothing was learnt.
"""


def card(record: dict[str, Any], parameters: int, length: int) -> str:
    """README.md of the checkpoint whose training.json is `record`."""
    parts = [HEAD.format(million=parameters / 1e6), SHAPE.format(length=length), _training(record)]
    parts += [_joint(joint) for joint in record.get("joint", [])]
    if "same_windows" in record:
        parts.append(_compared(record["same_windows"]))
    if "speculation" in record:
        parts.append(_speculation(record["speculation"]))
    return "\n".join([part.strip() + "\n" for part in [*parts, _data(record)]])


def _training(record: dict[str, Any]) -> str:
    trunk, mtp = record["trunk"], record["mtp"]
    covered = ", ".join(f"{share:.3f}" for share in mtp["held_out_coverage"])
    return f"""
## Training

`{record["command"]}` on one {record["device"]}, torch {record["torch"]}, seed {record["seed"]}.

| part | steps | tokens seen | seconds | last loss |
|---|---|---|---|---|
| trunk | {trunk["steps"]} | {trunk["tokens"] / 1e6:.0f} M | {trunk["seconds"]:.0f} | {trunk["losses"][-1][1]:.3f} |
| MTP layer, trunk frozen | {mtp["steps"]} | {mtp["tokens"] / 1e6:.0f} M | {mtp["seconds"]:.0f} | {mtp["losses"][-1][1]:.3f} |

The trunk's held-out loss is {trunk["held_out_nats"]:.3f} nats a token. The MTP layer was unrolled {mtp["unrolled"]} steps, as it
drafts, against the trunk's own law: cross entropy first, then mostly the share of the law that it misses, 1 - sum min(p, q).
On held-out text its steps cover {covered} of the trunk's law.
"""


def _joint(joint: dict[str, Any]) -> str:
    both, alone = joint["trunk_and_mtp"], joint["mtp_alone"]
    covered = ", ".join(f"{share:.3f}" for share in joint["held_out_coverage"])
    return f"""
Then `{joint["command"]}` on the same device and corpus trained both together, so that the trunk's final hidden carries what the
second token needs ({both["steps"]} steps, {both["tokens"] / 1e6:.0f} M tokens, {both["seconds"]:.0f} s), and the MTP layer alone on the trunk as it is stored
({alone["steps"]} steps, {alone["tokens"] / 1e6:.0f} M tokens, {alone["seconds"]:.0f} s). Held out, windows in the order of seed {joint["held_out_order"]}:
{joint["held_out_nats"]:.3f} nats a token; the MTP steps cover {covered} of the law. Losses in different orders are of
different text and cannot be compared.
"""


def _compared(found: dict[str, Any]) -> str:
    rows = [
        f"| {item['after']} | {item['nats']:.3f} | {item['more_nats']:+.3f} ({item['standard_error']:.3f}) | "
        f"{', '.join(f'{share:.3f}' for share in item['coverage'])} |"
        for item in found["stages"]
    ]
    table = "\n".join(rows)
    return f"""
The stages on the same {found["windows"]} windows ({found["text"]}):

| after | nats a token | more than the first (standard error) | covered by each MTP step |
|---|---|---|---|
{table}

So training together buys acceptance with a little of the trunk's own loss.
"""


def _speculation(found: dict[str, Any]) -> str:
    rows = []
    for mode in ("greedy", "sampled"):
        figures = found[mode]
        shares = ", ".join(f"{share:.3f}" for share in figures["acceptance"])
        rows.append(
            f"| {mode} | {figures['tokens_per_step']:.2f} | {shares} | {figures['repeated_8_grams']:.3f} |"
        )
    table = "\n".join(rows)
    share = found["sampled"].get("token_acceptance")
    each = "" if share is None else f" ({share:.3f} when each counts once)"
    draws = found["sampled"].get("first_draft_by_draw", [])
    spread = (
        f"\nThe sampled row is the mean of {len(draws)} draws of all prompts with fresh seeds; the share of first drafts"
        f"\naccepted lay between {min(draws):.3f} and {max(draws):.3f}.\n"
        if draws
        else ""
    )
    return f"""
## Speculation

{found["prompts"]} held-out prompts (`prompts.json`), {found["tokens"]} tokens each, {found["drafts"]} drafts a step, fp32 on
{found["device"]}. Sampled means T = 1 over the whole vocabulary, drafts drawn from the MTP layer's law, rejection sampling.

| mode | tokens a step | acceptance at each position, given the ones before | repeated 8-grams |
|---|---|---|---|
{table}
{spread}
Rounds start more often at hard places, just behind a rejected draft, so their share is lower than that of all tokens{each}.
A small model's greedy text repeats itself, which flatters a draft. Judge the draft by the sampled row.
"""


def _data(record: dict[str, Any]) -> str:
    items = sorted(record["corpus"], key=lambda item: -int(item["bytes"]))
    rows = [
        f"| {item['package']} | {item['version']} | {item['licence']} | {item['files']} | {item['bytes'] / 1e6:.2f} |"
        for item in items
    ]
    tokens, listed = record["tokens"], "\n".join(rows)
    return f"""
## Data

Python sources of the packages below: {sum(item["bytes"] for item in items) / 1e6:.0f} MB,
{tokens["learnt"] / 1e6:.1f} M tokens to learn from and {tokens["held_out"] / 1e6:.2f} M held out. Equal files are read
once; one file in 100, by its hash, is held out. Near copies (licence headers, generated variants of one file) can stand
on both sides, so the held-out loss is that of code much like the training code.

| package | version | licence | files | MB |
|---|---|---|---|---|
{listed}
"""
