"""The matrix: family x proposer x cache x backend x device x k, generated from the registries.

A cell either runs or is refused; a refusal's reason is itself checked.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from ft.contracts.rig import Setting
from ft.fast.capabilities import BACKENDS, CACHES, PROPOSERS
from ft.reference.registry import families

DRAFTS = (1, 3, 7)
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
CONTRACT_PROPOSERS = ("oracle", "scripted")
"""Draft sources that are no flag: they know the text."""


@dataclass(frozen=True)
class Variant:
    """A tiny checkpoint of one family."""

    family: str
    name: str
    vocabulary: int
    has_mtp: bool


@dataclass(frozen=True)
class Cell:
    """One combination. refusal: words of the reason why the plan refuses it; empty when it runs."""

    variant: Variant
    proposer: str
    drafts: int
    cache: str
    backend: str
    device: str
    dtype: str
    refusal: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        size = f"{self.proposer}{self.drafts or ''}"
        return f"{self.variant.name}-{size}-{self.cache}-{self.backend}-{self.device}-{SHORT[self.dtype]}"

    def setting(self) -> Setting:
        return Setting(
            folder=folder_of(self.variant),
            family=self.variant.family,
            proposer=self.proposer,
            drafts=self.drafts,
            device=self.device,
            dtype=self.dtype,
            backend=self.backend,
        )


def devices() -> list[str]:
    """Devices of this machine."""
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def places(dtypes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Every device of this machine with each of these dtypes."""
    return [(device, dtype) for device in devices() for dtype in dtypes]


@cache
def variants() -> tuple[Variant, ...]:
    """Every family's tiny checkpoints."""
    return tuple(
        Variant(family.name, tiny.name, tiny.vocabulary, tiny.has_mtp)
        for family in families()
        for tiny in family.tiny
    )


@cache
def folder_of(variant: Variant) -> Path:
    """The variant's checkpoint, written once a process."""
    family = next(item for item in families() if item.name == variant.family)
    folder = Path(mkdtemp(prefix="ft-contracts-")) / variant.name
    family.write_tiny(variant.name, folder, seed=0)
    return folder


def cells(
    proposers: tuple[str, ...] | None = None,
    drafts: tuple[int, ...] = DRAFTS,
    dtypes: tuple[str, ...] = ("float32",),
) -> list[Cell]:
    """The cells of these proposers and k, all by default; those that are refused come with their reason.

    dtypes: of the weights; what is compared with the fp32 reference runs in fp32 alone. On a CPU, where bf16 is slow and
    nobody's first choice, one checkpoint and k = 3 stand for all in it.
    """
    names = (*PROPOSERS, *CONTRACT_PROPOSERS) if proposers is None else proposers
    chosen = []
    for variant in variants():
        for proposer in names:
            for k in (0,) if proposer == "off" else drafts:
                for cache_type in CACHES:
                    for backend in BACKENDS:
                        for device, dtype in places(dtypes):
                            if (device, dtype) == ("cpu", "bfloat16") and (
                                variant != variants()[0] or k not in (0, 3)
                            ):
                                continue
                            refusal = _refusal(variant, proposer, backend, device)
                            chosen.append(
                                Cell(variant, proposer, k, cache_type, backend, device, dtype, refusal)
                            )
    return chosen


def _refusal(variant: Variant, proposer: str, backend: str, device: str) -> tuple[str, ...]:
    if device not in BACKENDS[backend].devices:
        return ("--device", device, f"backend {backend} does not support it")
    row = PROPOSERS.get(proposer)
    if row is not None and row.needs_mtp and not variant.has_mtp:
        return ("--speculative-algorithm", proposer, "no MTP layer")
    return ()
