"""From a plan to an engine: reads the weights, allocates the pools, joins the parts."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ft.fast import sampler
from ft.fast.backends.torch_ops import TorchOperations
from ft.fast.caches.naive import NaiveCache
from ft.fast.engine import Engine
from ft.fast.families.base import Model, fast_family
from ft.fast.plan import Plan
from ft.fast.pools.paged import PageTable
from ft.fast.scheduler import Scheduler
from ft.fast.spec.base import SlottedProposer
from ft.fast.spec.mtp import MTPProposer
from ft.fast.spec.runner import SpecRunner
from ft.fast.table import RequestTable
from ft.reference.registry import family_named
from ft.reference.weights.dummy import DummyCheckpoint
from ft.reference.weights.safetensors import Checkpoint


@dataclass(frozen=True)
class Parts:
    """What a proposer is made from."""

    plan: Plan
    model: Model
    table: RequestTable


def mtp_proposer(parts: Parts) -> SlottedProposer | None:
    """The proposer that the plan's algorithm names; None when speculation is off."""
    if parts.plan.algorithm == "off":
        return None
    network = parts.model.drafts[parts.plan.algorithm]
    return MTPProposer(network, parts.table, parts.plan.drafts, getattr(torch, parts.plan.dtype))


def verify_of(backend: str) -> sampler.Verify:
    """How the backend judges drafts. Triton is imported for its own backend only."""
    if backend == "torch":
        return sampler.verify
    from ft.fast.backends.triton_verify import TritonVerify

    return TritonVerify()


def build(plan: Plan, proposer: Callable[[Parts], SlottedProposer | None] = mtp_proposer) -> Engine:
    """An engine for the plan. CheckpointError names the file and tensor that is missing or wrong."""
    device = torch.device(plan.device)
    pages = PageTable(plan.max_running_requests, plan.context, plan.page_size, plan.pages, device)
    family = family_named(plan.family)
    config = family.read_config(plan.model)
    checkpoint = DummyCheckpoint(plan.model) if plan.dummy_weight else Checkpoint(plan.model)
    with torch.no_grad():
        model = fast_family(plan.family).load(checkpoint, config, plan, TorchOperations(), pages)
        table = RequestTable(plan.max_running_requests, plan.context, model.target.vocabulary, device)
        runtime = SpecRunner(
            model.target,
            proposer(Parts(plan, model, table)),
            table,
            plan.drafts,
            plan.context,
            verify_of(plan.backend),
        )
    scheduler = Scheduler(
        NaiveCache(pages),
        plan.max_running_requests,
        plan.prefill_grid,
        plan.max_prefill_length,
        plan.context,
    )
    return Engine(plan, runtime, scheduler)
