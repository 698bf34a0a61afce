"""Counter-based random numbers: Philox4x32-10 keyed by request seed, position and stream.

A draw depends on its key alone, so a request draws the same numbers in every batch, at every k and in every
replay (verify_sampling 10). The key is the 64-bit seed as (low word, high word); the counter is
(position of the token decided, stream, block, step), and a block gives four 32-bit words. `step` is the position of
the first token that the step decides, which no other step of the request shares, and 0 for coupled noise.
Generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import secrets

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ft.reference.types import Sampling, Stream

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
BELOW_ONE = 1.0 - 2.0**-24
"""The largest fp32 below 1."""


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Ten rounds over counters [..., 4] with one key of two words; returns words [..., 4]."""
    c0, c1, c2, c3 = np.moveaxis(counter.astype(np.uint64), -1, 0)
    k0, k1 = key
    for _ in range(ROUNDS):
        product0 = np.uint64(MULTIPLIERS[0]) * c0
        product1 = np.uint64(MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (
            (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            product1 & np.uint64(WORD),
            (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            product0 & np.uint64(WORD),
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def words(seed: int, position: int, stream: Stream, count: int, step: int = 0) -> NDArray[np.uint32]:
    """The first `count` words [count] of one key. `seed` counts modulo 2**64, `position` and `step` are below 2**32."""
    blocks = -(-count // 4)
    counter = np.zeros((blocks, 4), dtype=np.uint32)
    counter[:, 0] = position
    counter[:, 1] = int(stream)
    counter[:, 2] = np.arange(blocks)
    counter[:, 3] = step
    return philox(counter, (seed & WORD, (seed >> 32) & WORD)).reshape(-1)[:count]


def uniform(seed: int, position: int, stream: Stream, step: int) -> Tensor:
    """fp32 scalar on [0, 1): the top 24 bits of the first word times 2**-24, so that 1.0 is never reached."""
    top = words(seed, position, stream, 1, step) >> np.uint32(8)
    return torch.from_numpy(top.astype(np.float32) * np.float32(2.0**-24))[0]


def open_uniform(seed: int, position: int, stream: Stream, count: int) -> Tensor:
    """fp32 [count] strictly inside (0, 1), with 31 bits near 0: (word | 1) * 2**-32, capped below 1.

    The odd multiples are midpoints of cells of 2**-31, so a sum over cells errs in second order only.
    """
    odd = (words(seed, position, stream, count) | np.uint32(1)).astype(np.float32)
    return torch.from_numpy(np.minimum(odd * np.float32(2.0**-32), np.float32(BELOW_ONE)))


def gumbel(seed: int, position: int, vocabulary: int) -> Tensor:
    """Gumbel noise fp32 [V] for the token decided at `position`: -log(-log(1 - u)).

    Token id v takes word v % 4 of block v // 4. Written with 1 - u because the winners of an argmax have
    u near 0, where fp32 is finest.
    """
    u = open_uniform(seed, position, Stream.COUPLED, vocabulary)
    return -torch.log(-torch.log1p(-u))


def request_seed(sampling: Sampling) -> int:
    """The seed of one request for its lifetime: its own, or a fresh one when it has none."""
    return secrets.randbits(63) if sampling.seed is None else sampling.seed
