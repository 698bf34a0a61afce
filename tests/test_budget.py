"""The price list against the numbers of specs qwen3_5 7.3, and the arithmetic of pools."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft.fast import budget
from ft.fast.budget import MIB
from ft.fast.inputs import CheckpointFacts

BF16, FP32 = 2, 4

DENSE_27B = CheckpointFacts(
    family="qwen3_5", vocabulary=248320, hidden=5120, context=262144,
    attention_layers=16, kv_heads=4, head_dim=256,
    linear_layers=48, linear_key_heads=16, linear_value_heads=48, linear_key_dim=128, linear_value_dim=128,
    conv_channels=10240, conv_taps=4, widest=34816, parameters=26_895_998_464, draft_parameters=424_699_392,
    mtp_layers=1, has_mtp=True, stored_bytes=54_000_000_000,
)  # fmt: skip
MOE_35B = replace(
    DENSE_27B, hidden=2048, attention_layers=10, kv_heads=2, linear_layers=30, linear_value_heads=32,
    conv_channels=8192, widest=8192, parameters=34_660_610_688, draft_parameters=844_640_768,
)  # fmt: skip


def mib(size: int) -> float:
    return round(size / MIB, 2)


@pytest.mark.parametrize(
    ("facts", "recurrent", "conv", "live"), [(DENSE_27B, 144, 2.81, 146.8), (MOE_35B, 60, 1.41, 61.4)]
)
def test_live_state_of_a_request(facts: CheckpointFacts, recurrent: int, conv: float, live: float) -> None:
    assert budget.recurrent_bytes(facts) == recurrent * MIB
    assert mib(budget.conv_bytes(facts, 3, BF16)) == conv
    assert round(budget.state_bytes(facts, BF16) / MIB, 1) == live


@pytest.mark.parametrize(
    ("facts", "drafts", "row_states", "state_blocks", "planes", "ring"),
    [
        (DENSE_27B, 3, 728.4, 598.5, 598.5, 6.0),
        (DENSE_27B, 7, 1308.2, 1227.0, 1197.0, 12.1),
        (MOE_35B, 3, 304.2, 251.3, 251.3, 2.8),
        (MOE_35B, 7, 546.1, 517.5, 502.5, 5.7),
    ],
)
def test_published_ways_to_keep_rows(
    facts: CheckpointFacts, drafts: int, row_states: float, state_blocks: float, planes: float, ring: float
) -> None:
    """The four other ways of the table, put together from the functions that price ours."""
    rows, state = drafts + 1, budget.recurrent_bytes(facts)

    def conv(columns: int, dtype_bytes: int = BF16) -> int:
        return budget.conv_bytes(facts, columns, dtype_bytes)

    def tenths(size: int) -> float:
        """The table rounds halves up."""
        return (20 * size + MIB) // (2 * MIB) / 10

    assert tenths(budget.state_bytes(facts, BF16) + rows * state + conv(rows + 2)) == row_states
    assert tenths(rows * (state + conv(3 + drafts))) == state_blocks
    assert tenths(rows * (state + conv(3, FP32))) == planes
    heads = facts.linear_key_heads * facts.linear_key_dim + facts.linear_value_heads * facts.linear_value_dim
    assert tenths(rows * facts.linear_layers * 4 * (heads + facts.linear_value_heads)) == ring
    ours = rows * budget.staged_row_bytes(facts)
    assert ours == rows * facts.linear_layers * 4 * (heads + 2 * facts.linear_value_heads)
    assert budget.staged_bytes(facts, 1, rows, BF16) == ours + conv(3 + rows)


def test_keys_and_values_of_a_token() -> None:
    assert budget.kv_bytes(1, 4, 256, BF16) == 4 * 1024
    assert budget.kv_bytes(16, 4, 256, BF16) == 64 * 1024


def priced(facts: CheckpointFacts, drafts: int, mtp: bool, requests: int = 2) -> budget.Price:
    return budget.price(
        facts,
        dtype_bytes=BF16,
        drafts=drafts,
        mtp=mtp,
        requests=requests,
        grid=64,
        context=4096,
        page_size=16,
    )


def test_speculation_adds_the_draft_layer_and_rows_only() -> None:
    off, on = priced(DENSE_27B, 0, False), priced(DENSE_27B, 3, True)
    assert off.draft_kv_per_token == 0
    assert on.draft_kv_per_token == 4 * 1024
    assert on.kv_per_token == off.kv_per_token
    assert on.states == off.states == 3 * budget.state_bytes(DENSE_27B, BF16)
    assert on.weights - off.weights == DENSE_27B.draft_parameters * BF16
    assert on.logits == 4 * off.logits


def test_fixed_is_the_sum_of_its_parts() -> None:
    price = priced(MOE_35B, 3, True)
    parts = (price.weights, price.states, price.staged, price.activations, price.logits, price.table)
    assert all(part > 0 for part in parts)
    assert price.fixed == sum(parts)
    assert price.table == 3 * (4096 // 16) * 8


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.sampled_from([1, 4, 16, 64]))
def test_pages_never_overrun_the_pool(pool: int, per_token: int, page_size: int) -> None:
    pages = budget.pages_that_fit(pool, per_token, page_size)
    page = per_token * page_size
    assert pages == 0 or (pages + 1) * page <= pool
    assert (pages + 2) * page > pool


def test_a_negative_rest_holds_no_page() -> None:
    assert budget.pages_that_fit(-1, 10, 16) == 0


@given(st.integers(1, 1 << 20), st.sampled_from([1, 4, 16, 64]))
def test_pages_of_tokens(tokens: int, page_size: int) -> None:
    pages = budget.pages_of(tokens, page_size)
    assert (pages - 1) * page_size < tokens <= pages * page_size


def test_memory_ratio_counts_in_thousandths() -> None:
    assert budget.usable_bytes(1000, 0.9) == 900
    assert budget.usable_bytes(139 << 30, 1.0) == 139 << 30


def test_plan_and_budget_need_no_torch() -> None:
    script = "import ft.fast.plan, ft.fast.budget, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
