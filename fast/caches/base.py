"""What the engine may ask of a prefix cache, the same of every kind."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Lease:
    """Pages of one request, and how many prompt tokens of them were already there."""

    slot: int
    pages: tuple[int, ...]
    cached_tokens: int


class PrefixCache(Protocol):
    """Owns the pages. When nothing runs, free + cached == capacity, by equality."""

    @property
    def capacity(self) -> int:
        """Pages in all."""
        ...

    @property
    def free(self) -> int:
        """Pages that hold nothing."""
        ...

    @property
    def cached(self) -> int:
        """Pages kept for later requests."""
        ...

    def admit(self, slot: int, prompt: tuple[int, ...], tokens: int) -> Lease | None:
        """Pages for `tokens` positions of a new request, or None when too few can be had now."""
        ...

    def release(self, lease: Lease, committed: tuple[int, ...]) -> None:
        """Take a request's pages back; `committed` are the tokens whose keys and values stand in them."""
        ...
