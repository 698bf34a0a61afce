"""What a family gives the engine, and how families are found."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ft.fast.backends.base import Operations
from ft.fast.plan import Plan
from ft.fast.pools.paged import PageTable
from ft.fast.spec.base import SlottedTarget
from ft.fast.spec.mtp import DraftNetwork


@dataclass(frozen=True)
class Model:
    """A target on its device, and its draft networks by method."""

    target: SlottedTarget
    drafts: dict[str, DraftNetwork]


@dataclass(frozen=True)
class FastFamily:
    """name: that of the reference family. load: checkpoint, config, plan, operations, page table -> Model."""

    name: str
    load: Callable[[Any, Any, Plan, Operations, PageTable], Model]


def fast_family(name: str) -> FastFamily:
    """The family of this name. ValueError lists those that exist."""
    import ft.fast.families as package

    found = {
        item.name: importlib.import_module(f"{package.__name__}.{item.name}").FAMILY
        for item in pkgutil.iter_modules(package.__path__)
        if item.ispkg
    }
    if name not in found:
        raise ValueError(f"family {name!r} has no fast implementation; there are: {', '.join(sorted(found))}")
    family = found[name]
    assert isinstance(family, FastFamily)
    return family
