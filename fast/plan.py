"""Flags, checkpoint and device resolved into one frozen plan, or refused with value, limit and way out."""

from dataclasses import dataclass
from pathlib import Path

from ft.fast import budget
from ft.fast.budget import MIB, Price
from ft.fast.capabilities import (
    BACKENDS,
    CACHES,
    DEFAULT_DTYPE,
    DTYPE_BYTES,
    PREFILL_GRID,
    PROPOSERS,
    BackendRow,
    CacheRow,
)
from ft.fast.checks import Choice, check
from ft.fast.inputs import CheckpointFacts, DeviceFacts, Flags
from ft.fast.refusal import Refusal, refuse

UNPRICED = Price()

__all__ = ["CheckpointFacts", "DeviceFacts", "Flags", "Plan", "Refusal", "render", "resolve"]


@dataclass(frozen=True)
class Plan:
    """Every choice of one engine, made before any weight is read.

    algorithm: "off" or a proposer's name; drafts: k, 0 when off. page_size tokens a page, `pages` in all.
    prefill_grid: prompts are cut at multiples of it, counted from token 0. batch_sizes: padded request
    counts of a step, ascending, the last one max_running_requests. price: what it takes, in bytes.
    """

    model: Path
    family: str
    algorithm: str
    drafts: int
    draft_model: Path | None
    device: str
    dtype: str
    backend: str
    cache: str
    page_size: int
    pages: int
    context: int
    max_running_requests: int
    max_prefill_length: int
    prefill_grid: int
    batch_sizes: tuple[int, ...]
    dummy_weight: bool = False
    price: Price = UNPRICED


def resolve(flags: Flags, checkpoint: CheckpointFacts, device: DeviceFacts) -> Plan:
    """The plan. Refusal lists every unsound choice at once; memory is priced when all choices are sound."""
    choice = choose(flags, device)
    problems = check(flags, choice, checkpoint, device)
    if problems:
        raise Refusal(problems)
    proposer = PROPOSERS[choice.algorithm]
    asked = flags.speculative_num_steps
    drafts = proposer.default_drafts if asked is None else asked
    context = flags.context_length or checkpoint.context
    price = budget.price(
        checkpoint,
        dtype_bytes=DTYPE_BYTES[choice.dtype],
        drafts=drafts,
        mtp=proposer.needs_mtp,
        requests=flags.max_running_requests,
        grid=PREFILL_GRID,
        context=context,
        page_size=flags.page_size,
    )
    return Plan(
        model=flags.folder,
        family=checkpoint.family,
        algorithm=choice.algorithm,
        drafts=drafts,
        draft_model=flags.speculative_draft_model_path,
        device=device.name,
        dtype=choice.dtype,
        backend=choice.backend,
        cache=choice.cache,
        page_size=flags.page_size,
        pages=_pages(flags, CACHES[choice.cache], device, price, context),
        context=context,
        max_running_requests=flags.max_running_requests,
        max_prefill_length=flags.max_prefill_length,
        prefill_grid=PREFILL_GRID,
        batch_sizes=batch_sizes(flags.max_running_requests, BACKENDS[choice.backend], device.kind),
        dummy_weight=flags.dummy_weight,
        price=price,
    )


def choose(flags: Flags, device: DeviceFacts) -> Choice:
    """The flags' names, and for those left open the first row that fits the device."""
    fitting = [
        row.name
        for row in BACKENDS.values()
        if device.kind in row.devices and device.packages.issuperset(row.packages)
    ]
    return Choice(
        algorithm=flags.speculative_algorithm,
        cache=flags.cache_type or next(iter(CACHES)),
        backend=flags.attention_backend or next(iter(fitting), "torch"),
        dtype=flags.dtype or DEFAULT_DTYPE.get(device.kind, "float32"),
    )


def batch_sizes(requests: int, backend: BackendRow, device_kind: str) -> tuple[int, ...]:
    """Padded request counts: powers of two up to `requests`, and it; it alone where batches must not vary."""
    if device_kind in backend.one_batch_on:
        return (requests,)
    powers = (1 << exponent for exponent in range(requests.bit_length()))
    return tuple(sorted({*powers, requests}))


def _pages(flags: Flags, cache: CacheRow, device: DeviceFacts, price: Price, context: int) -> int:
    """Pages of the pools. Refusal when the memory holds no request of full length."""
    size = flags.page_size
    needed = budget.pages_of(context, size)
    usable = budget.usable_bytes(device.free_bytes, flags.memory_ratio)
    left = usable - price.fixed
    fitting = budget.pages_that_fit(left, price.per_token, size)
    if fitting < needed:
        raise _too_little_memory(flags, device, price, context, fitting * size)
    if flags.num_tokens is None:
        if device.kind == "cpu":
            fitting = max(needed, min(fitting, budget.CPU_POOL_BYTES // (price.per_token * size)))
        return fitting if cache.keeps_finished else min(fitting, flags.max_running_requests * needed)
    asked = budget.pages_of(flags.num_tokens, size)
    subject = f"--num-tokens {flags.num_tokens}"
    if asked < needed:
        limit = f"one request may need the whole context of {context} tokens"
        raise refuse(subject, limit, f"choose {context} or more, or --context-length {flags.num_tokens}")
    if asked > fitting:
        limit = f"{fitting * size} tokens fit in the {_mib(left)} MiB that weights and states leave"
        raise refuse(subject, limit, f"choose {fitting * size} or less")
    return asked


def _too_little_memory(flags: Flags, device: DeviceFacts, price: Price, context: int, tokens: int) -> Refusal:
    wanted = price.fixed + context * price.per_token
    limit = (
        f"{_mib(wanted)} MiB are needed for weights ({_mib(price.weights)} MiB), {flags.max_running_requests} "
        f"requests and one context of {context} tokens ({price.per_token} bytes each)"
    )
    shorter = f"--context-length {tokens}, " if tokens > 1 else ""
    fewer = "a lower --max-running-requests, " if flags.max_running_requests > 1 else ""
    subject = f"--memory-ratio {flags.memory_ratio} of {_mib(device.free_bytes)} MiB free on {device.name}"
    return refuse(subject, limit, f"try {shorter}{fewer}a higher ratio or a smaller checkpoint")


def _mib(size: int) -> int:
    return -(-size // MIB)


def render(plan: Plan) -> str:
    """The plan as an aligned table, one choice a line, for start-up to print."""
    price = plan.price
    speculation = f"{plan.algorithm}, {plan.drafts} drafts a step" if plan.drafts else "off"
    rows = {
        "model": f"{plan.model} ({plan.family}){', dummy weights' if plan.dummy_weight else ''}",
        "speculation": speculation + (f", draft {plan.draft_model}" if plan.draft_model else ""),
        "device": f"{plan.device}, {plan.dtype}, backend {plan.backend}",
        "cache": f"{plan.cache}, {plan.pages} pages of {plan.page_size} tokens",
        "context": f"{plan.context} tokens a request",
        "requests": f"{plan.max_running_requests} at once, in batches of {', '.join(map(str, plan.batch_sizes))}",
        "prefill": f"{plan.max_prefill_length} tokens a step, on a grid of {plan.prefill_grid}",
        "memory": f"weights {_mib(price.weights)} MiB, fixed state {_mib(price.fixed - price.weights)} MiB, "
        f"pools {_mib(plan.pages * plan.page_size * price.per_token)} MiB",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())
