"""The one comparison of the contracts: shape and dtype first, NaN is a failure, then RMS ratio and largest
difference, both printed."""

import torch
from torch import Tensor

from ft.contracts.tolerances import Tolerance


def assert_close(name: str, expected: Tensor, actual: Tensor, tolerance: Tolerance) -> None:
    """AssertionError unless |actual - expected| stays within the tolerance, both by RMS and at the worst element.

    Both limits are relative to the RMS of `expected`.
    """
    assert actual.shape == expected.shape, (
        f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    want, have = expected.detach().double().cpu(), actual.detach().double().cpu()
    for side, values in (("expected", want), ("actual", have)):
        broken = int((~torch.isfinite(values)).sum())
        assert not broken, f"{name}: {broken} of {values.numel()} {side} values are not finite"
    if not want.numel():
        return
    difference = (have - want).abs()
    scale = max(float(want.square().mean().sqrt()), 1e-30)
    ratio = float(difference.square().mean().sqrt()) / scale
    worst = float(difference.max()) / scale
    assert ratio <= tolerance.rms and worst <= tolerance.worst, (
        f"{name}: RMS ratio {ratio:.2e} (limit {tolerance.rms:.1e}), largest difference {worst:.2e} of the RMS "
        f"(limit {tolerance.worst:.1e}) at {_place(difference)}"
    )


def assert_equal(name: str, expected: Tensor, actual: Tensor) -> None:
    """AssertionError unless the two are the same bit for bit; NaN is a failure, also when both have it."""
    assert actual.shape == expected.shape, (
        f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    assert actual.dtype == expected.dtype, f"{name}: {actual.dtype}, expected {expected.dtype}"
    have, want = actual.detach().cpu(), expected.detach().cpu()
    if want.is_floating_point():
        assert bool(torch.isfinite(want).all()), f"{name}: an expected value is not finite"
    differ = have != want
    count = int(differ.sum())
    assert not count, (
        f"{name}: {count} of {want.numel()} values differ, first at {_place(differ.to(torch.int8))}"
    )


def assert_tokens(name: str, expected: list[int], actual: list[int]) -> None:
    """AssertionError that shows where two token sequences part."""
    if expected == actual:
        return
    part = next(
        (i for i, pair in enumerate(zip(expected, actual, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(actual)),
    )
    raise AssertionError(
        f"{name}: {len(actual)} tokens, expected {len(expected)}; they part at {part}: "
        f"{actual[part : part + 6]} instead of {expected[part : part + 6]}"
    )


def _place(values: Tensor) -> tuple[int, ...]:
    return tuple(int(index) for index in torch.unravel_index(values.argmax(), values.shape))
