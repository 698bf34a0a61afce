"""Qwen3.5: dense and MoE text trunks and their MTP head on the device."""

import torch

from ft.fast.backends.base import Operations
from ft.fast.families.base import FastFamily, Model
from ft.fast.families.qwen3_5.drafts import MTPDraft
from ft.fast.families.qwen3_5.prepare import Preparation
from ft.fast.families.qwen3_5.target import Qwen35Target
from ft.fast.plan import Plan
from ft.fast.pools.paged import PageTable
from ft.fast.spec.mtp import DraftNetwork
from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.load import load_mtp, load_target
from ft.reference.weights.safetensors import Checkpoint


def load(
    checkpoint: Checkpoint, config: Config, plan: Plan, operations: Operations, table: PageTable
) -> Model:
    """Read the weights that the plan needs. CheckpointError names file and tensor."""
    prepare = Preparation(torch.device(plan.device), getattr(torch, plan.dtype))
    weights = prepare.target(load_target(checkpoint, config))
    target = Qwen35Target(config, weights, operations, table, plan.max_running_requests)
    drafts: dict[str, DraftNetwork] = {}
    if plan.algorithm == "mtp":
        drafts["mtp"] = MTPDraft(prepare.mtp(load_mtp(checkpoint, config)), target)
    return Model(target, drafts)


FAMILY = FastFamily(name="qwen3_5", load=load)
