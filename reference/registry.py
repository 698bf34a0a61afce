"""Finds families by walking the package: a family is a folder whose `__init__.py` exports FAMILY."""

import importlib
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ft.reference.drafting import Chooser
from ft.reference.weights.safetensors import Checkpoint


@dataclass(frozen=True)
class Tiny:
    """A configuration small enough for contracts. has_mtp: whether its checkpoint holds a draft head."""

    name: str
    vocabulary: int
    has_mtp: bool


class WriteTiny(Protocol):
    """Writes a random checkpoint of the tiny called `name` into `folder`, the same for the same seed."""

    def __call__(self, name: str, folder: Path, seed: int) -> None: ...


@dataclass(frozen=True)
class Family:
    """One model family.

    read_config: checkpoint folder -> configuration. target: checkpoint, configuration, dtype -> reference
    target. drafts: method -> (checkpoint, configuration, target, chooser) -> reference proposer.
    write_tiny: name of a tiny, folder, seed -> a random checkpoint in released form.
    """

    name: str
    model_types: tuple[str, ...]
    read_config: Callable[[Path], Any]
    target: Callable[..., Any]
    drafts: dict[str, Callable[[Checkpoint, Any, Any, Chooser], Any]]
    tiny: tuple[Tiny, ...]
    write_tiny: WriteTiny


@cache
def families() -> tuple[Family, ...]:
    """Every family, by name."""
    import ft.reference.families as package

    return tuple(
        importlib.import_module(f"{package.__name__}.{item.name}").FAMILY
        for item in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name)
        if item.ispkg
    )


def family_named(name: str) -> Family:
    """The family of this name. ValueError lists those that exist."""
    found = next((family for family in families() if family.name == name), None)
    if found is None:
        raise ValueError(f"family {name!r} is not known; there are: {', '.join(f.name for f in families())}")
    return found


def family_of(model_type: str) -> Family:
    """The family of a checkpoint's model_type. ValueError lists the known ones."""
    for family in families():
        if model_type in family.model_types:
            return family
    known = ", ".join(kind for family in families() for kind in family.model_types)
    raise ValueError(f"model_type {model_type!r} is not supported; supported: {known}")


def model_type_of(folder: Path) -> str:
    """The model_type that a checkpoint's config.json names. ValueError names the file."""
    path = Path(folder) / "config.json"
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if isinstance(kind, str):
        return kind
    raise ValueError(f"{path}: model_type is {kind!r}; it must name a model family")
