"""Philox4x32-10 on the device, bit for bit the generator of `ft.reference.random`, for B requests at once.

Integer arithmetic in int64, elementwise: nothing depends on the batch, nothing waits for the host, and seeds
and positions are tensors that a graph replay reads anew.
"""

import torch
from torch import Tensor

from ft.reference.types import Stream

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
HALF = 0xFFFF
BELOW_ONE = 1.0 - 2.0**-24


def multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of word * factor. The factor is split so that no product exceeds 48 bits."""
    upper, lower = word * (factor >> 16), word * (factor & HALF)
    high = (upper + (lower >> 16)) >> 16
    low = (((upper & HALF) << 16) + lower) & WORD
    return high, low


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Ten rounds over words held as int64; counter and key tensors broadcast. Returns words [..., 4]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = multiply(c0, MULTIPLIERS[0])
        high1, low1 = multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)


def words(
    seeds: Tensor, positions: Tensor, stream: Stream, count: int, steps: Tensor | None = None
) -> Tensor:
    """The first `count` words of each request's key, int64 [B, count].

    seeds: int64 [B], the 64 bits of the seed. positions: int64 [B], the token decided, below 2**32. steps: int64 [B],
    the first position that the step decides, or None for 0.
    """
    blocks = torch.arange(-(-count // 4), device=seeds.device)[None]
    zero = torch.zeros_like(blocks)
    last = zero if steps is None else steps[:, None]
    counter = (positions[:, None], zero + int(stream), blocks, last)
    key = (seeds[:, None] & WORD, (seeds[:, None] >> 32) & WORD)
    return philox(counter, key).flatten(1)[:, :count]


def uniform(seeds: Tensor, positions: Tensor, stream: Stream, steps: Tensor) -> Tensor:
    """fp32 [B] on [0, 1): the top 24 bits of the first word."""
    return (words(seeds, positions, stream, 1, steps)[:, 0] >> 8).to(torch.float32) * 2.0**-24


def open_uniform(seeds: Tensor, positions: Tensor, stream: Stream, count: int) -> Tensor:
    """fp32 [B, count] strictly inside (0, 1): (word | 1) * 2**-32, capped below 1."""
    odd = (words(seeds, positions, stream, count) | 1).to(torch.float32)
    return torch.clamp(odd * 2.0**-32, max=BELOW_ONE)


def gumbel(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Gumbel noise fp32 [B, V] of the tokens decided at `positions`, one value a token id."""
    u = open_uniform(seeds, positions, Stream.COUPLED, vocabulary)
    return -torch.log(-torch.log1p(-u))
