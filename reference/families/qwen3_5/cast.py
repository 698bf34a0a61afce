"""Weights from their stored dtypes straight to the dtype that the reference computes in."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Weights = TypeVar("Weights")


def cast(weights: Weights, dtype: torch.dtype = torch.float32) -> Weights:
    """The same weights dataclass with every tensor in `dtype`; tied tensors stay one."""
    done: dict[int, Tensor] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            return done.setdefault(id(value), value.to(dtype))
        if isinstance(value, tuple):
            return tuple(convert(item) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{item.name: convert(getattr(value, item.name)) for item in fields(value)})
        return value

    converted: Weights = convert(weights)
    return converted
