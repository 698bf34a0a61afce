"""Who runs next: admission in arrival order, prompt chunks on the absolute grid, decode batches.

The scheduler keeps host-side records only; the exact lengths live in the request table on the device, and the
records hold upper bounds until a step's results come in.
"""

from collections import deque
from dataclasses import dataclass, field

from ft.fast.caches.base import Lease, PrefixCache
from ft.fast.request import Request


@dataclass
class Running:
    """Host record of an admitted request. prefilled counts prompt positions with keys and values."""

    request: Request
    lease: Lease
    prefilled: int
    generated: int = 0
    in_flight: int = 0
    tokens: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def prompt_rows(self) -> int:
        """Prompt positions to prefill: all but the last token, which is the first pending one."""
        return len(self.request.prompt) - 1

    @property
    def decoding(self) -> bool:
        return not self.finished and self.prefilled == self.prompt_rows

    def may_continue(self) -> bool:
        """Whether another step can still emit, given that each step in flight emits at least one token."""
        return self.decoding and self.generated + self.in_flight < self.request.max_tokens


@dataclass(frozen=True)
class Chunk:
    """Prompt rows [start, end) of one request; they lie within one cell of the grid."""

    running: Running
    start: int
    end: int


class Scheduler:
    """Slots and order. `slots` requests run at most."""

    def __init__(self, cache: PrefixCache, slots: int, grid: int, prefill_tokens: int, context: int) -> None:
        self.cache = cache
        self.grid = grid
        self.prefill_tokens = prefill_tokens
        self.context = context
        self.waiting: deque[Request] = deque()
        self.running: dict[str, Running] = {}
        self._free_slots = list(range(slots - 1, -1, -1))

    def reservation(self, request: Request) -> int:
        """Positions that the request can reach at most."""
        return min(len(request.prompt) + request.max_tokens, self.context)

    def admit(self) -> list[Running]:
        """Admit waiting requests in order while slots and pages last."""
        admitted = []
        while self.waiting and self._free_slots:
            request = self.waiting[0]
            slot = self._free_slots[-1]
            lease = self.cache.admit(slot, request.prompt, self.reservation(request))
            if lease is None:
                break
            self._free_slots.pop()
            self.waiting.popleft()
            record = Running(request, lease, prefilled=lease.cached_tokens)
            self.running[request.id] = record
            admitted.append(record)
        return admitted

    def chunks(self) -> list[Chunk]:
        """Prompt chunks of this step, within the budget of prompt tokens, oldest request first."""
        budget = self.prefill_tokens
        chosen: list[Chunk] = []
        for record in self.running.values():
            start = record.prefilled
            while start < record.prompt_rows:
                end = min(record.prompt_rows, (start // self.grid + 1) * self.grid)
                if end - start > budget:
                    return chosen
                chosen.append(Chunk(record, start, end))
                budget -= end - start
                start = end
        return chosen

    def decoding(self) -> list[Running]:
        return [record for record in self.running.values() if record.may_continue()]

    def finish(self, record: Running) -> None:
        """Return the slot and the pages of a request. Steps in flight see it switched off."""
        record.finished = True
        del self.running[record.request.id]
        self._free_slots.append(record.lease.slot)
        sequence = (*record.request.prompt, *record.tokens)
        self.cache.release(record.lease, sequence[: -1 if record.tokens else record.prefilled])

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)
