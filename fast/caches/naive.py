"""A prefix cache that keeps nothing: every request starts cold."""

from ft.fast.caches.base import Lease
from ft.fast.pools.paged import PageTable


class NaiveCache:
    """Implements caches.base.PrefixCache."""

    def __init__(self, table: PageTable) -> None:
        self.table = table

    @property
    def capacity(self) -> int:
        return self.table.pages

    @property
    def free(self) -> int:
        return self.table.free

    @property
    def cached(self) -> int:
        return 0

    def admit(self, slot: int, prompt: tuple[int, ...], tokens: int) -> Lease | None:
        count = self.table.pages_for(tokens)
        if count > self.table.free:
            return None
        return Lease(slot, tuple(self.table.allocate(slot, count)), cached_tokens=0)

    def release(self, lease: Lease, committed: tuple[int, ...]) -> None:
        self.table.release(lease.slot, list(lease.pages))
