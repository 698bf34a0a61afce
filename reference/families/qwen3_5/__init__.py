"""Qwen3.5 / 3.6 / 3.8: dense and MoE text trunks with GatedDeltaNet and full attention, and their MTP head."""

import torch

from ft.reference.drafting import Chooser
from ft.reference.families.qwen3_5.cast import cast
from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.drafts import MTPDraft
from ft.reference.families.qwen3_5.load import load_mtp, load_target
from ft.reference.families.qwen3_5.parse import MODEL_TYPES, read
from ft.reference.families.qwen3_5.target import ReferenceTarget
from ft.reference.families.qwen3_5.tiny import TINY, write_tiny
from ft.reference.proposers.mtp import MTPProposer
from ft.reference.registry import Family
from ft.reference.weights.safetensors import Checkpoint


def build_target(
    checkpoint: Checkpoint, config: Config, dtype: torch.dtype = torch.float32
) -> ReferenceTarget:
    return ReferenceTarget(config, cast(load_target(checkpoint, config), dtype))


def build_mtp(
    checkpoint: Checkpoint, config: Config, trunk: ReferenceTarget, chooser: Chooser
) -> MTPProposer:
    weights = cast(load_mtp(checkpoint, config), trunk.dtype)
    return MTPProposer(MTPDraft(weights, trunk), chooser)


FAMILY: Family = Family(
    name="qwen3_5",
    model_types=MODEL_TYPES,
    read_config=read,
    target=build_target,
    drafts={"mtp": build_mtp},
    tiny=TINY,
    write_tiny=write_tiny,
)
