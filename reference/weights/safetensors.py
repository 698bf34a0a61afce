"""A checkpoint folder as named tensors. Every tensor is claimed once: none is left over, none is missing."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class CheckpointError(ValueError):
    """A file or tensor that is missing, damaged, of the wrong shape, or not part of the model."""


class Checkpoint:
    """Tensors of one folder, in their stored dtypes. Shards are opened when first read from."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._files: dict[Path, Any] = {}
        self._where = self._locate()
        self._claimed: set[str] = set()

    def _locate(self) -> dict[str, Path]:
        if not self.folder.is_dir():
            raise CheckpointError(f"{self.folder}: no such folder; name the folder that holds the checkpoint")
        index = self.folder / INDEX
        if index.exists():
            return self._indexed(index)
        single = self.folder / SINGLE
        if not single.exists():
            raise CheckpointError(f"{self.folder}: holds neither {SINGLE} nor {INDEX}")
        return dict.fromkeys(self._stored(single), single)

    def _indexed(self, index: Path) -> dict[str, Path]:
        try:
            weight_map = json.loads(index.read_text())["weight_map"]
            where = {str(name): self.folder / str(shard) for name, shard in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise CheckpointError(f"{index}: not a readable index with a weight_map ({error})") from None
        for shard in sorted(set(where.values())):
            if not shard.exists():
                raise CheckpointError(f"{index}: names the shard {shard.name}, which is not there")
            stored = self._stored(shard)
            listed = {name for name, file in where.items() if file == shard}
            missing, unlisted = listed - stored, stored - listed
            if missing:
                raise CheckpointError(f"{shard}: the index places {min(missing)} in it, and it is not there")
            if unlisted:
                raise CheckpointError(f"{shard}: holds {min(unlisted)}, which {INDEX} does not place there")
        return where

    def _stored(self, path: Path) -> set[str]:
        return set(self._open(path).keys())

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path}: damaged or not a safetensors file ({error})") from None
        return self._files[path]

    @property
    def names(self) -> list[str]:
        """Tensor names, sorted."""
        return sorted(self._where)

    @property
    def stored_bytes(self) -> int:
        """Size of the weight files."""
        return sum(path.stat().st_size for path in set(self._where.values()))

    def has(self, name: str) -> bool:
        return name in self._where

    def take(self, name: str, shape: Iterable[int]) -> Tensor:
        """The tensor of this name and shape, in its stored dtype; it counts as claimed."""
        wanted = tuple(shape)
        if name not in self._where:
            raise CheckpointError(f"{self.folder}: tensor {name} of shape {list(wanted)} is missing")
        path = self._where[name]
        try:
            tensor: Tensor = self._open(path).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: tensor {name} cannot be read ({error})") from None
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(
                f"{path}: tensor {name} is stored as {tensor.dtype}; quantised weights are not supported, "
                "take the bf16 checkpoint"
            )
        if tuple(tensor.shape) != wanted:
            raise CheckpointError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, expected {list(wanted)}"
            )
        self._claimed.add(name)
        return tensor

    def finish(self, ignored: tuple[str, ...] = (), within: tuple[str, ...] = ("",)) -> None:
        """CheckpointError that lists the tensors nobody claimed among those with a prefix of `within`, but for
        those with an ignored prefix."""
        left = [
            name
            for name in self.names
            if name not in self._claimed and name.startswith(within) and not name.startswith(ignored)
        ]
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise CheckpointError(
                f"{self.folder}: tensors that the model has no place for: {', '.join(left[:5])}{more}"
            )
