"""Reads what a plan needs to know of a checkpoint and a device. Nothing is loaded and no memory is taken."""

import importlib
import importlib.util
import os
from pathlib import Path

import torch

from ft.fast.capabilities import BACKENDS
from ft.fast.inputs import CheckpointFacts, DeviceFacts, Flags
from ft.fast.plan import Plan, resolve
from ft.fast.refusal import Refusal, refuse
from ft.reference.registry import family_of, model_type_of
from ft.reference.weights.safetensors import Checkpoint, CheckpointError

HOST_MEMORY = Path("/proc/meminfo")


def read_checkpoint_facts(folder: Path, *, dummy: bool = False) -> CheckpointFacts:
    """Facts of the checkpoint in `folder`. A dummy needs a config only, and has the MTP layer it announces.

    Refusal names the folder, file or field that is missing, damaged or not known.
    """
    if not folder.is_dir():
        raise refuse(f"--model {folder}", "there is no such folder", "name the folder of a checkpoint")
    try:
        family = family_of(model_type_of(folder))
        config = family.read_config(folder)
        stored = None if dummy else Checkpoint(folder)
    except (CheckpointError, ValueError) as error:
        raise unusable(folder, error) from error
    module = importlib.import_module(f"ft.fast.families.{family.name}.facts")
    names, size = (None, 0) if stored is None else (stored.names, stored.stored_bytes)
    found = module.facts(config, names, size)
    assert isinstance(found, CheckpointFacts)
    return found


def unusable(folder: Path, error: Exception) -> Refusal:
    """The refusal of a checkpoint that cannot be read."""
    return refuse(f"--model {folder}", str(error), "mend the checkpoint or name another")


def read_device_facts(name: str | None = None) -> DeviceFacts:
    """Facts of a device by torch's name for it; None takes the first GPU, or the CPU where there is none."""
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = automatic if name is None else name
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise refuse(f"--device {wanted}", "torch knows no such device", "choose cpu or cuda") from error
    if device.type == "cpu":
        return DeviceFacts("cpu", "cpu", free_host_bytes(HOST_MEMORY), f"{os.cpu_count()} cores", packages())
    if device.type != "cuda":
        return DeviceFacts(device.type, wanted, 0, packages=packages())
    count = torch.cuda.device_count()
    index = device.index or 0
    if index >= count:
        limit = f"torch sees {count} GPUs" if count else "torch sees no GPU"
        raise refuse(
            f"--device {wanted}", limit, f"choose cuda:{count - 1} or lower" if count else "choose cpu"
        )
    free, _ = torch.cuda.mem_get_info(index)
    return DeviceFacts("cuda", f"cuda:{index}", free, torch.cuda.get_device_name(index), packages())


def packages() -> frozenset[str]:
    """Packages that backends need and this interpreter finds."""
    needed = {name for row in BACKENDS.values() for name in row.packages}
    return frozenset(name for name in needed if importlib.util.find_spec(name) is not None)


def free_host_bytes(report: Path) -> int:
    """Memory that new work may take: what Linux reports as available, elsewhere half of what there is."""
    if report.exists():
        for line in report.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def make_plan(flags: Flags) -> Plan:
    """Read the facts that the flags point at, and resolve. Refusal says what cannot be used or chosen."""
    checkpoint = read_checkpoint_facts(flags.folder, dummy=flags.dummy_weight)
    return resolve(flags, checkpoint, read_device_facts(flags.device))
