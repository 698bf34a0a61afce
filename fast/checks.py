"""Every choice held against the capability rows and the checkpoint; what is unsound comes back as problems."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ft.fast.capabilities import BACKENDS, CACHES, DTYPE_BYTES, PREFILL_GRID, PROPOSERS
from ft.fast.inputs import CheckpointFacts, DeviceFacts, Flags
from ft.fast.refusal import Problem


@dataclass(frozen=True)
class Choice:
    """The names picked by flag or by default; they may be unknown."""

    algorithm: str
    cache: str
    backend: str
    dtype: str


def check(flags: Flags, choice: Choice, checkpoint: CheckpointFacts, device: DeviceFacts) -> list[Problem]:
    """All problems, speculation first; empty when the choices are sound."""
    return [
        *_speculation(flags, choice, checkpoint),
        *_known("--cache-type", choice.cache, CACHES),
        *_backend(flags, choice, device),
        *_numbers(flags, checkpoint),
        *_service(flags),
    ]


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


def _known(flag: str, value: str, table: Mapping[str, object]) -> Iterator[Problem]:
    if value not in table:
        yield Problem(f"{flag} {value}", "there is no such choice", f"choose from: {_listed(list(table))}")


def _speculation(flags: Flags, choice: Choice, checkpoint: CheckpointFacts) -> Iterator[Problem]:
    name, drafts, path = choice.algorithm, flags.speculative_num_steps, flags.speculative_draft_model_path
    yield from _known("--speculative-algorithm", name, PROPOSERS)
    row = PROPOSERS.get(name)
    if row is not None and drafts is not None and drafts not in row.drafts:
        first, last = row.drafts[0], row.drafts[-1]
        limit = (
            f"{name} drafts {first} to {last} tokens a step"
            if last
            else "no tokens are drafted without a proposer"
        )
        way_out = (
            f"choose k from {first} to {last}" if last else "leave it out, or name a --speculative-algorithm"
        )
        yield Problem(f"--speculative-num-steps {drafts}", limit, way_out)
    if row is not None and row.needs_mtp and not (checkpoint.has_mtp and checkpoint.mtp_layers):
        yield _no_mtp(name, checkpoint)
    if row is not None and path is not None and not row.takes_draft_model:
        limit = "nothing is drafted" if name == "off" else "it drafts with the target's own layer"
        yield Problem(
            f"--speculative-draft-model-path {path}", f"{name} takes no draft model: {limit}", "leave it out"
        )
    if flags.speculative_token_map is not None:
        yield Problem(
            f"--speculative-token-map {flags.speculative_token_map}",
            "no proposer drafts from a part of the vocabulary",
            "leave it out; the whole vocabulary is drafted from",
        )


def _no_mtp(name: str, checkpoint: CheckpointFacts) -> Problem:
    subject, way_out = f"--speculative-algorithm {name}", "take another, or --speculative-algorithm off"
    if checkpoint.has_mtp:
        limit = "the checkpoint has mtp.* tensors, and its config announces no MTP layer"
        return Problem(subject, limit, "set mtp_num_hidden_layers to 1 in its config.json")
    if checkpoint.mtp_layers:
        return Problem(
            subject, "the checkpoint's config announces an MTP layer, and there are no mtp.* tensors", way_out
        )
    return Problem(subject, "the checkpoint has no MTP layer", way_out)


def _backend(flags: Flags, choice: Choice, device: DeviceFacts) -> Iterator[Problem]:
    row = BACKENDS.get(choice.backend)
    yield from _known("--attention-backend", choice.backend, BACKENDS)
    if row is None:
        yield from _known("--dtype", choice.dtype, DTYPE_BYTES)
        return
    missing = [name for name in row.packages if name not in device.packages]
    if missing and device.kind in row.devices:
        yield Problem(
            f"--attention-backend {row.name}",
            f"it needs {', '.join(missing)}, which is not installed",
            f"pip install {' '.join(missing)}, or choose torch",
        )
    supported: tuple[tuple[str, object, Sequence[object]], ...] = (
        ("--device", device.kind, row.devices),
        ("--dtype", choice.dtype, row.dtypes),
        ("--page-size", flags.page_size, row.page_sizes),
    )
    for flag, value, values in supported:
        if value not in values:
            yield Problem(
                f"{flag} {value}",
                f"backend {row.name} does not support it",
                f"choose from: {_listed(values)}",
            )


def _numbers(flags: Flags, checkpoint: CheckpointFacts) -> Iterator[Problem]:
    length, grid = flags.max_prefill_length, PREFILL_GRID
    if flags.max_running_requests < 1:
        yield _below("--max-running-requests", flags.max_running_requests, 1)
    if length < grid or length % grid:
        nearest = max(grid, length // grid * grid)
        limit = f"prompts are cut on a grid of {grid} tokens, and a step takes whole cells"
        yield Problem(
            f"--max-prefill-length {length}", limit, f"choose a positive multiple, such as {nearest}"
        )
    if flags.num_tokens is not None and flags.num_tokens < 1:
        yield _below("--num-tokens", flags.num_tokens, 1)
    if flags.context_length is not None and flags.context_length < 2:
        yield _below("--context-length", flags.context_length, 2)
    elif flags.context_length is not None and flags.context_length > checkpoint.context >= 2:
        yield Problem(
            f"--context-length {flags.context_length}",
            f"the checkpoint's context is {checkpoint.context}",
            f"choose {checkpoint.context} or less, or leave it out",
        )
    if not 0.001 <= flags.memory_ratio <= 1:
        limit = "it is the part of the free memory to take, 0.001 to 1"
        yield Problem(f"--memory-ratio {flags.memory_ratio}", limit, "choose 0.9 when in doubt")
    if checkpoint.context < 2:
        yield Problem(
            f"{flags.folder}", f"its context is {checkpoint.context} tokens", "it must be at least 2"
        )


def _service(flags: Flags) -> Iterator[Problem]:
    if not 0 <= flags.port <= 65535:
        yield Problem(f"--port {flags.port}", "ports are 0 to 65535", "choose 1919, or 0 for any free one")
    for flag, value in (("--api-key", flags.api_key), ("--served-model-name", flags.served_model_name)):
        if value is not None and not value.strip():
            yield Problem(f"{flag} {value!r}", "it is empty", "give it some text or leave it out")


def _below(flag: str, value: int, least: int) -> Problem:
    return Problem(f"{flag} {value}", f"the least is {least}", f"choose {least} or more")
