"""The rule of rows: what a row computes does not depend, to the last bit, on what stands beside it."""

from dataclasses import replace

import torch

from ft.contracts.bench import FastBench, Rows, verdict_of
from ft.contracts.checks.texts import prompts
from ft.contracts.compare import assert_equal
from ft.contracts.rig import Setting

LENGTHS = (5, 64, 131, 20, 255)
"""Prompts of five requests, the last about to cross an attention split."""


def check_verify_rows_equal_decode_rows(setting: Setting, vocabulary: int) -> None:
    """Row r of a verify has the bits that a decode of the same token has, in every company."""
    listed = prompts(vocabulary, LENGTHS, seed=9)
    runs = prompts(vocabulary, (8,) * len(listed), seed=10)
    alone = [_decoded(setting, prompt, run) for prompt, run in zip(listed, runs, strict=True)]
    bench = FastBench(setting)
    for slot, prompt in enumerate(listed):
        bench.start(slot, prompt)
    for width in (1, 2, 4, 8):
        for group in ((0,), (1, 3), (4, 2, 0, 1), (3, 0, 4, 1, 2)):
            padded = _padded(setting, group)
            rows = Rows(
                padded,
                tuple(len(listed[slot]) - 1 if slot < len(listed) else 0 for slot in padded),
                tuple(
                    (listed[slot][-1], *runs[slot][: width - 1]) if slot < len(listed) else ()
                    for slot in padded
                ),
            )
            _, logits = bench.forward(bench.step(rows))
            for index, slot in enumerate(group):
                name = f"slot {slot} of {group}, {width} rows"
                assert_equal(name, alone[slot][:width], logits[index])


def _padded(setting: Setting, group: tuple[int, ...]) -> tuple[int, ...]:
    size = next(size for size in setting.plan().batch_sizes if size >= len(group))
    return group + (setting.requests,) * (size - len(group))


def _decoded(setting: Setting, prompt: tuple[int, ...], run: tuple[int, ...]) -> torch.Tensor:
    """Logits [8, V] of one-row decodes of the pending token and the run, in slot 0 with nobody beside it."""
    bench = FastBench(setting)
    bench.start(0, prompt)
    padded = _padded(setting, (0,))
    decoded = []
    for offset, token in enumerate((prompt[-1], *run[:-1])):
        starts = (len(prompt) - 1 + offset, *[0] * (len(padded) - 1))
        rows = Rows(padded, starts, ((token,), *[()] * (len(padded) - 1)))
        step = bench.step(rows)
        _, logits = bench.forward(step)
        kept = [1, *[0] * (len(padded) - 1)]
        verdict = verdict_of(rows, kept, [0] * len(padded), 1, setting.device)
        bench.runtime.target.commit(step, verdict.cut)
        decoded.append(logits[0, 0])
    return torch.stack(decoded)


def check_prefill_ignores_neighbours(setting: Setting, vocabulary: int) -> None:
    """The states after a prefill are bitwise the same whatever slot it ran in and whoever ran before."""
    listed = prompts(vocabulary, (70, 131, 64), seed=11)
    crowded = FastBench(replace(setting, requests=5))
    for slot, prompt in ((4, listed[1]), (2, listed[2]), (1, listed[0])):
        crowded.start(slot, prompt)
    for slot, prompt in ((1, listed[0]), (4, listed[1])):
        single = FastBench(setting)
        single.start(0, prompt)
        committed = len(prompt) - 1
        expected = single.state(0, committed)
        for name, value in crowded.state(slot, committed).items():
            assert_equal(f"{name} of a prompt of {len(prompt)}", expected[name], value)
