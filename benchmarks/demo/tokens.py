"""The demo's byte-level BPE tokenizer, and its corpus as one array of token ids."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from benchmarks.demo.corpus import Source

VOCABULARY = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SAMPLE_BYTES = 40_000_000


def train_tokenizer(files: Sequence[Source], seed: int) -> Tokenizer:
    """A vocabulary of `VOCABULARY` ids, the special ones among the first."""
    order = [source.text for source in files if not source.held_out]
    random.Random(seed).shuffle(order)
    sample, size = [], 0
    for text in order:
        if size > SAMPLE_BYTES:
            break
        sample.append(text)
        size += len(text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str], seed: int) -> Tensor:
    """All texts in a shuffled order, each closed by <|endoftext|>, as int16 ids."""
    shuffled = list(texts)
    random.Random(seed).shuffle(shuffled)
    end = np.array([tokenizer.token_to_id(SPECIAL[0])], dtype=np.int16)
    parts: list[np.ndarray] = []
    for start in range(0, len(shuffled), 2000):
        batch = tokenizer.encode_batch_fast(shuffled[start : start + 2000])
        for encoding in batch:
            parts += [np.array(encoding.ids, dtype=np.int16), end]
    return torch.from_numpy(np.concatenate(parts))


def windows(ids: Tensor, count: int, length: int, draw: torch.Generator) -> Tensor:
    """`count` random windows int64 [count, length]."""
    starts = torch.randint(0, ids.shape[0] - length, (count, 1), generator=draw, device=ids.device)
    return ids[starts + torch.arange(length, device=ids.device)].long()


def save(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
