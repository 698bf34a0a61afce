"""Engines over tiny checkpoints, built for contracts: any proposer, any k, any prefill grid."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ft.fast.build import Parts, build, mtp_proposer
from ft.fast.engine import Engine
from ft.fast.plan import Plan
from ft.fast.pools.paged import PagedKV
from ft.fast.request import Request, Update
from ft.fast.spec.base import SlottedProposer
from ft.fast.spec.continuation import OracleProposer, ScriptedProposer
from ft.fast.spec.runner import SpecRunner

CONTEXT = 320
"""Positions a request may have in the contracts: more than one attention split, few pages."""

Continuations = Mapping[tuple[int, ...], Sequence[int]]


@dataclass(frozen=True)
class Setting:
    """One engine of the contracts: checkpoint, proposer, k and where it runs."""

    folder: Path
    family: str = "qwen3_5"
    proposer: str = "off"
    drafts: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    backend: str = "torch"
    requests: int = 5
    grid: int = 64
    page_size: int = 4
    context: int = CONTEXT
    script: tuple[int, ...] = (2, 0, 1, 3, 7, 5)

    def plan(self) -> Plan:
        """The plan of this setting; oracle and scripted drafts need no weights of their own."""
        pages = self.requests * (-(-self.context // self.page_size))
        sizes = tuple(sorted({1, 2, 4, self.requests})) if self.device == "cpu" else (self.requests,)
        return Plan(
            model=self.folder,
            family=self.family,
            algorithm="mtp" if self.proposer == "mtp" else "off",
            drafts=self.drafts,
            draft_model=None,
            device=self.device,
            dtype=self.dtype,
            backend=self.backend,
            cache="naive",
            page_size=self.page_size,
            pages=pages,
            context=self.context,
            max_running_requests=self.requests,
            max_prefill_length=max(self.grid, 64 // self.grid * self.grid),
            prefill_grid=self.grid,
            batch_sizes=sizes,
        )

    def engine(self, continuations: Continuations | None = None) -> Engine:
        return build(self.plan(), self._proposer(continuations or {}))

    def _proposer(self, known: Continuations) -> Callable[[Parts], SlottedProposer | None]:
        def oracle(parts: Parts) -> SlottedProposer:
            return OracleProposer(known, parts.table, self.drafts, self.context)

        def scripted(parts: Parts) -> SlottedProposer:
            vocabulary = parts.model.target.vocabulary
            return ScriptedProposer(known, self.script, parts.table, self.drafts, self.context, vocabulary)

        return {"off": mtp_proposer, "mtp": mtp_proposer, "oracle": oracle, "scripted": scripted}[
            self.proposer
        ]

    def off(self) -> "Setting":
        """The same engine without speculation."""
        return replace(self, proposer="off", drafts=0)


def run(
    engine: Engine,
    requests: Sequence[Request],
    joining: int = 2,
    limit: int = 20000,
    before_step: Callable[[], None] = lambda: None,
) -> dict[str, list[Update]]:
    """Updates by request; `joining` requests are added at first and one more every third step."""
    queue = list(requests)
    updates: dict[str, list[Update]] = {request.id: [] for request in requests}
    for step in range(limit):
        for _ in range(joining if not step else int(not step % 3)):
            if queue:
                engine.add(queue.pop(0))
        before_step()
        for update in engine.step():
            updates[update.request_id].append(update)
        if not queue and engine.idle:
            return updates
    raise AssertionError(f"{limit} steps were not enough for {len(requests)} requests")


def tokens(updates: Sequence[Update]) -> list[int]:
    return [token for update in updates for token in update.tokens]


def key_values(engine: Engine) -> list[PagedKV]:
    """Every paged pool of an engine's target and draft."""
    assert isinstance(engine.runtime, SpecRunner)
    owners: list[Any] = [engine.runtime.target, getattr(engine.runtime.proposer, "network", None)]
    return [owner.kv for owner in owners if isinstance(getattr(owner, "kv", None), PagedKV)]


def poison_unheld_pages(engine: Engine) -> None:
    """NaN into the dummy page and into every page that no request holds, as a request that failed may leave them."""
    for pool in key_values(engine):
        table = pool.table
        held = torch.zeros(table.pages + 1, dtype=torch.bool)
        held[table.table.cpu().flatten()] = True
        held[table.dummy] = False
        loose = (~held).repeat_interleave(table.page_size).to(pool.keys.device)
        pool.keys[:, loose] = float("nan")
        pool.values[:, loose] = float("nan")
