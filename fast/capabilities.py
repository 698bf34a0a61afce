"""What each proposer, cache and backend supports, as data: the plan chooses, checks and explains from these rows.

The first row of a table that fits is the automatic choice.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ProposerRow:
    """drafts: the k it can be asked for, and the k it takes unasked. needs_mtp: drafts with the checkpoint's
    MTP layer. takes_draft_model: drafts with a checkpoint of its own."""

    name: str
    drafts: range
    default_drafts: int
    needs_mtp: bool = False
    takes_draft_model: bool = False


@dataclass(frozen=True)
class CacheRow:
    """keeps_finished: pages outlive their request, so more pages than the running requests can use help."""

    name: str
    keeps_finished: bool


@dataclass(frozen=True)
class BackendRow:
    """row_invariant: keeps the rule of rows. one_batch_on: device kinds where every step has the largest
    batch, since a smaller one would take other kernels. packages: what it needs beyond torch."""

    name: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    page_sizes: tuple[int, ...]
    row_invariant: bool
    one_batch_on: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


PROPOSERS = {
    row.name: row
    for row in (
        ProposerRow("off", range(1), 0),
        ProposerRow("mtp", range(1, 16), 3, needs_mtp=True),
    )
}

CACHES = {row.name: row for row in (CacheRow("naive", keeps_finished=False),)}

BACKENDS = {
    row.name: row
    for row in (
        BackendRow(
            "triton",
            devices=("cuda",),
            dtypes=("float32", "bfloat16"),
            page_sizes=(1, 4, 16, 64),
            row_invariant=True,
            one_batch_on=("cuda",),
            packages=("triton",),
        ),
        BackendRow(
            "torch",
            devices=("cpu", "cuda"),
            dtypes=("float32", "bfloat16"),
            page_sizes=(1, 4, 16, 64),
            row_invariant=True,
            one_batch_on=("cuda",),
        ),
    )
}

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
DEFAULT_DTYPE = {"cpu": "float32", "cuda": "bfloat16"}

PREFILL_GRID = 64
"""Prompts are cut at multiples of it, counted from token 0; the chunk of the GatedDeltaNet prefill."""
