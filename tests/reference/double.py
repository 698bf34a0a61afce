"""Runs a transformers modelling module in float64, which tells a wrong formula from rounding.

Modelling code casts to float32 in many places. Under `doubled` its `torch` gives float64 for float32, and
`Tensor.float` widens to double. Models are built before, so that rope's inverse frequencies keep their fp32 values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


class DoubleTorch:
    """torch, with float64 where single precision is asked for."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def doubled(module: ModuleType) -> Iterator[None]:
    """Within, `module` computes everything in float64."""
    plain: Any = module
    single: Any = Tensor.float
    plain.torch, Tensor.float = DoubleTorch(), Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        plain.torch, Tensor.float = torch, single  # type: ignore[method-assign]
