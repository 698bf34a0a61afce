"""Where a run ends: stop ids, the token budget, the context (verify_sampling 7)."""

from collections.abc import Collection, Sequence
from typing import Literal

Finish = Literal["stop", "length"]


def cut(
    emitted: Sequence[int],
    stop_ids: Collection[int],
    generated: int,
    max_tokens: int,
    committed: int,
    context: int,
) -> tuple[int, Finish | None]:
    """How many tokens of the run are emitted, m, and why the request ends there, or None.

    The first token that ends the request is the last emitted. A stop id wins over a limit at the same token.
    generated: tokens emitted before this step. committed: C, so token i of the run (from 0) has absolute
    index C + 1 + i. A request holds at most `context` tokens, prompt included.
    """
    for index, token in enumerate(emitted):
        if token in stop_ids:
            return index + 1, "stop"
        if generated + index + 1 >= max_tokens or committed + index + 2 >= context:
            return index + 1, "length"
    return len(emitted), None
