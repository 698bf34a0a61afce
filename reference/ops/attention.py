"""Grouped-query softmax attention of rows over keys, causal by position (specs qwen3_5 2.3)."""

import torch
from torch import Tensor


def attention(query: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """query [T, nq, D], keys and values [S, nkv, D], positions int64 [T] -> [T, nq, D].

    Key s stands at position s; row t sees keys 0..positions[t]. Query head a reads kv head a // (nq / nkv).
    """
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,shd->hts", query, keys) * query.shape[-1] ** -0.5
    hidden = torch.arange(keys.shape[0]) > positions[:, None]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hts,shd->thd", weights, values)
