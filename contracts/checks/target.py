"""The engine's target equals the reference's: prefill at odd cuts, decode, verify rows, taps, mrope positions."""

from dataclasses import replace

import torch

from ft.contracts.bench import FastBench, Rows, verdict_of
from ft.contracts.checks.texts import prompts
from ft.contracts.compare import assert_close
from ft.contracts.oracle import ReferenceBench
from ft.contracts.rig import Setting
from ft.contracts.tolerances import quantity_of, tolerance

CUTS = (1, 3, 4, 9, 10)
"""Prefill cuts of a prompt of ten tokens, and of eleven, so that all ten are prefilled."""


def check_prefill(setting: Setting, vocabulary: int) -> None:
    """Every state after prompts cut at odd places, and the logits of the token that follows."""
    for length in (10, 11):
        prompt = prompts(vocabulary, (length,), seed=21)[0]
        reference = ReferenceBench(setting)
        reference.start(0, prompt)
        for grid in CUTS:
            bench = FastBench(replace(setting, grid=grid))
            bench.start(1, prompt)
            compare_states(
                f"grid {grid}", reference.state(0, length - 1), bench.state(1, length - 1), setting
            )
            rows = Rows((1,), (length - 1,), ((prompt[-1],),))
            _, logits = bench.forward(bench.step(rows))
            _, expected = reference.forward(reference.step(rows, slot=0))
            assert_close(f"logits, grid {grid}", expected[0], logits[0], tolerance("logits", setting.dtype))


def check_verify(setting: Setting, vocabulary: int) -> None:
    """Logits, final hidden and every layer's tap of decode and verify rows, beyond a chunk and a split."""
    for length in (1, 2, 66, 258):
        prompt = prompts(vocabulary, (length,), seed=22)[0]
        run = prompts(vocabulary, (7,), seed=23)[0]
        reference, bench = ReferenceBench(setting), FastBench(setting)
        reference.start(0, prompt)
        bench.start(2, prompt)
        layers = tuple(range(reference.layers))
        for width in (1, 4, 8):
            rows = Rows((2,), (length - 1,), ((prompt[-1], *run[: width - 1]),))
            step = bench.step(rows, taps=layers)
            features, logits = bench.forward(step)
            wanted, expected = reference.forward(reference.step(rows, slot=0, taps=layers))
            name = f"{width} rows after {length - 1}"
            assert_close(f"logits, {name}", expected, logits, tolerance("logits", setting.dtype))
            limit = tolerance("hidden", setting.dtype)
            assert_close(f"final hidden, {name}", wanted.final_hidden, features.final_hidden, limit)
            for layer in layers:
                tap = features.layer_output(layer)
                assert_close(f"tap of layer {layer}, {name}", wanted.layer_output(layer), tap, limit)


def check_mrope(setting: Setting, vocabulary: int) -> None:
    """Three independent position axes turn the heads; the plain index still decides slots and masks."""
    prompt, run = prompts(vocabulary, (12, 4), seed=24)
    reference, bench = ReferenceBench(setting), FastBench(setting)
    reference.start(0, prompt)
    bench.start(0, prompt)
    rows = Rows((0,), (len(prompt) - 1,), ((prompt[-1], *run[:3]),))
    rope = torch.tensor([[[11, 11, 12, 13]], [[11, 14, 12, 19]], [[11, 12, 17, 13]]])
    _, logits = bench.forward(bench.step(rows, rope))
    _, expected = reference.forward(reference.step(rows, slot=0, rope=rope))
    assert_close("logits with three axes", expected, logits, tolerance("logits", setting.dtype))
    _, flat = reference.forward(reference.step(rows, slot=0))
    assert float((flat - expected).abs().max()) > 1e-2, "the three axes made no difference: the case is blind"


def compare_states(
    name: str, expected: dict[str, torch.Tensor], actual: dict[str, torch.Tensor], setting: Setting
) -> None:
    """Every named state, by the tolerance of its kind."""
    assert sorted(expected) == sorted(actual), f"{name}: states {sorted(actual)}, expected {sorted(expected)}"
    for state, value in expected.items():
        assert_close(f"{state}, {name}", value, actual[state], tolerance(quantity_of(state), setting.dtype))


def commit_rows(bench: FastBench, rows: Rows, kept: list[int], bonus: list[int]) -> None:
    """One verify of `rows` of which `kept` are committed."""
    step = bench.step(rows)
    features, _ = bench.forward(step)
    bench.keep(step, features, verdict_of(rows, kept, bonus, step.rows, bench.setting.device))
