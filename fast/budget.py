"""Memory in whole bytes, priced before any of it is taken. Integer arithmetic, no torch.

Source: specs qwen3_5 7.3. Letters: L linear layers, Hk/Hv heads of Dk/Dv, C conv channels, K taps, k drafts.
"""

from dataclasses import dataclass

from ft.fast.inputs import CheckpointFacts

FP32 = 4
INT64 = 8
MIB = 1 << 20

SAMPLING_BYTES = 24
"""A logit's temporaries beside itself: scaled and sorted values, their order (int64), mass and noise."""

STATE_COPIES = 3
"""Recurrent states of one layer that live at once while rows are walked: gathered, decayed, updated."""

CPU_POOL_BYTES = 512 * MIB
"""Key-value memory on a CPU, where free memory is everybody's, unless one whole context needs more."""


@dataclass(frozen=True)
class Price:
    """Bytes of one engine. `fixed` is taken at start-up or at the peak of a step, whatever the pools hold."""

    weights: int = 0
    states: int = 0
    staged: int = 0
    activations: int = 0
    logits: int = 0
    table: int = 0
    kv_per_token: int = 0
    draft_kv_per_token: int = 0

    @property
    def fixed(self) -> int:
        return self.weights + self.states + self.staged + self.activations + self.logits + self.table

    @property
    def per_token(self) -> int:
        """Bytes of one token in every layer's keys and values, the draft's included."""
        return self.kv_per_token + self.draft_kv_per_token


def kv_bytes(layers: int, kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Keys and values of one token."""
    return 2 * layers * kv_heads * head_dim * dtype_bytes


def recurrent_bytes(facts: CheckpointFacts) -> int:
    """S: the live fp32 state of one request, all linear layers."""
    heads = facts.linear_layers * facts.linear_value_heads
    return heads * facts.linear_key_dim * facts.linear_value_dim * FP32


def conv_bytes(facts: CheckpointFacts, columns: int, dtype_bytes: int) -> int:
    """c(n): n columns of conv inputs, all linear layers."""
    return facts.linear_layers * facts.conv_channels * columns * dtype_bytes


def state_bytes(facts: CheckpointFacts, dtype_bytes: int) -> int:
    """Live state of one request: S + c(K-1)."""
    return recurrent_bytes(facts) + conv_bytes(facts, facts.conv_taps - 1, dtype_bytes)


def staged_row_bytes(facts: CheckpointFacts) -> int:
    """fp32 inputs of the recurrence for one row: key, value, decay and beta, all linear layers."""
    key = facts.linear_key_heads * facts.linear_key_dim
    value = facts.linear_value_heads * facts.linear_value_dim
    return facts.linear_layers * FP32 * (key + value + 2 * facts.linear_value_heads)


def staged_bytes(facts: CheckpointFacts, requests: int, rows: int, dtype_bytes: int) -> int:
    """What a forward of `requests` of `rows` each stages until its commit: row inputs and conv columns."""
    columns = facts.conv_taps - 1 + rows
    return requests * (rows * staged_row_bytes(facts) + conv_bytes(facts, columns, dtype_bytes))


def activation_bytes(facts: CheckpointFacts, rows: int) -> int:
    """Temporaries of one layer at its widest, over all rows of a step, as if all were fp32."""
    return rows * FP32 * (4 * facts.hidden + 3 * facts.widest)


def walk_bytes(facts: CheckpointFacts, requests: int) -> int:
    """Recurrent states that one linear layer holds while it walks the rows of a step."""
    layers = max(1, facts.linear_layers)
    return STATE_COPIES * requests * recurrent_bytes(facts) // layers


def logits_bytes(facts: CheckpointFacts, rows: int, dtype_bytes: int) -> int:
    """Logits of a step's rows, in the model's dtype and in fp32, and what sampling makes of them."""
    return rows * facts.vocabulary * (dtype_bytes + FP32 + SAMPLING_BYTES)


def price(facts: CheckpointFacts, *, dtype_bytes: int, drafts: int, mtp: bool, requests: int, grid: int,
          context: int, page_size: int) -> Price:  # fmt: skip
    """Bytes of an engine for `requests` at once, `drafts` a step, prompts in chunks of `grid` rows.

    A request's slot and the padding's sink hold state each; a prefill stages one request's chunk and its
    state, a verify `drafts` + 1 rows of each request.
    """
    rows = requests * (drafts + 1)
    verify = staged_bytes(facts, requests, drafts + 1, dtype_bytes)
    prefill = staged_bytes(facts, 1, grid, dtype_bytes) + recurrent_bytes(facts)
    weights = facts.parameters + (facts.draft_parameters if mtp else 0)
    return Price(
        weights=weights * dtype_bytes,
        states=(requests + 1) * state_bytes(facts, dtype_bytes),
        staged=max(verify, prefill),
        activations=activation_bytes(facts, max(rows, grid)) + walk_bytes(facts, requests),
        logits=logits_bytes(facts, rows, dtype_bytes),
        table=(requests + 1) * pages_of(context, page_size) * INT64,
        kv_per_token=kv_bytes(facts.attention_layers, facts.kv_heads, facts.head_dim, dtype_bytes),
        draft_kv_per_token=kv_bytes(1, facts.kv_heads, facts.head_dim, dtype_bytes) if mtp else 0,
    )


def pages_of(tokens: int, page_size: int) -> int:
    """Pages that hold `tokens`."""
    return -(-tokens // page_size)


def usable_bytes(free_bytes: int, memory_ratio: float) -> int:
    """memory_ratio of the free memory, the ratio counted in thousandths."""
    return free_bytes * round(memory_ratio * 1000) // 1000


def pages_that_fit(pool_bytes: int, per_token: int, page_size: int) -> int:
    """Pages of `page_size` tokens in `pool_bytes`, beside the one page that padding writes to; not negative."""
    return max(0, pool_bytes // (per_token * page_size) - 1)
