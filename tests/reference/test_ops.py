"""Operations against closed forms and against their other form, each beside a wrong one."""

import math

import pytest
import torch
from torch import Tensor

from ft.reference.ops.attention import attention
from ft.reference.ops.conv import causal_conv
from ft.reference.ops.gated_delta import gated_delta, gated_delta_chunk
from ft.reference.ops.moe import experts, route
from ft.reference.ops.norm import centred_rms_norm, gated_rms_norm, l2_norm, rms_norm
from ft.reference.ops.rope import angles, axis_of_frequency, rotate

from .rig import error

EXACT = 1e-12
HEADS, KEY, VALUE = 3, 5, 7


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def delta_rows(count: int) -> tuple[Tensor, ...]:
    """query, key, value, decay over two decades, beta."""
    decay = -torch.exp(normal(count, HEADS, seed=4) * 2)
    query, key = l2_norm(normal(count, HEADS, KEY, seed=1)), l2_norm(normal(count, HEADS, KEY, seed=2))
    value = normal(count, HEADS, VALUE, seed=3)
    return query, key, value, decay, torch.sigmoid(normal(count, HEADS, seed=5))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 130])
def test_the_chunk_form_is_the_recurrence(count: int) -> None:
    rows, state = delta_rows(count), normal(HEADS, KEY, VALUE, seed=6)
    outputs, last = gated_delta(state, *rows)
    chunked, moved = gated_delta_chunk(state, *rows)
    assert error(outputs, chunked) < EXACT and error(last, moved) < EXACT
    q, k, v, g, beta = rows
    wrong, lost = gated_delta_chunk(state, q, k, v, g.roll(1, 0) if count > 1 else 2 * g, beta)
    assert error(outputs, wrong) > 1e-3 and error(last, lost) > 1e-3


def test_the_chunk_form_takes_padding_rows() -> None:
    """A row with beta 0 and decay 0 changes no state, whatever else it holds."""
    rows, state = delta_rows(20), normal(HEADS, KEY, VALUE, seed=6)
    padded = [torch.cat([x, fill]) for x, fill in zip(rows, delta_rows(5), strict=True)]
    padded[3][20:], padded[4][20:] = 0.0, 0.0
    outputs, last = gated_delta(state, *rows)
    chunked, moved = gated_delta_chunk(state, *padded)
    assert error(outputs, chunked[:20]) < EXACT and error(last, moved) < EXACT
    padded[4][20:] = 0.1
    assert error(last, gated_delta_chunk(state, *padded)[1]) > 1e-3


def test_one_step_is_the_closed_form() -> None:
    """S' = a (I - b k k^T) S + b k v^T, and the output reads S'."""
    q, k, v, g, beta = (x[0, 0] for x in delta_rows(1))
    state = normal(KEY, VALUE, seed=6)
    step = torch.eye(KEY, dtype=torch.float64) - beta * torch.outer(k, k)
    expected = torch.exp(g) * step @ state + beta * torch.outer(k, v)
    outputs, last = gated_delta(state[None], *(x[:, :1] for x in delta_rows(1)))
    assert error(expected, last[0]) < EXACT
    assert error(q @ expected, outputs[0, 0]) < EXACT
    assert error(q @ state, outputs[0, 0]) > 1e-2


def test_a_transposed_state_does_not_fit() -> None:
    with pytest.raises(RuntimeError):
        gated_delta(normal(HEADS, VALUE, KEY), *delta_rows(1))


def test_conv_in_pieces_is_conv_at_once() -> None:
    inputs, weight, zero = normal(9, 4), normal(4, 4, seed=1), torch.zeros(3, 4, dtype=torch.float64)
    padded = torch.cat([zero, inputs]).T[None]
    plain = torch.nn.functional.conv1d(padded, weight[:, None], groups=4)[0].T
    expected = torch.nn.functional.silu(plain)
    whole, state = causal_conv(inputs, zero, weight)
    assert error(expected, whole) < EXACT and torch.equal(state, inputs[-3:])
    first, carried = causal_conv(inputs[:2], zero, weight)
    rest, _ = causal_conv(inputs[2:], carried, weight)
    assert error(expected, torch.cat([first, rest])) < EXACT
    assert torch.equal(carried, torch.cat([zero[:1], inputs[:2]])), "a short prompt keeps zeros on the left"
    assert error(expected, causal_conv(inputs, zero, weight.flip(1))[0]) > 1e-1
    outputs_kept, _ = causal_conv(inputs[2:], torch.cat([zero[:1], first]), weight)
    assert error(expected[2:], outputs_kept) > 1e-2, "the state holds inputs"


def test_norms() -> None:
    x, gate, weight = normal(6, 8), normal(6, 8, seed=1), normal(8, seed=2)
    unit = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert error(unit * weight, rms_norm(x, weight, 1e-6)) < EXACT
    assert error(unit * (1 + weight), centred_rms_norm(x, weight, 1e-6)) < EXACT
    silu = gate * torch.sigmoid(gate)
    assert error(unit * weight * silu, gated_rms_norm(x, gate, weight, 1e-6)) < EXACT
    assert error(rms_norm(x * silu, weight, 1e-6), gated_rms_norm(x, gate, weight, 1e-6)) > 1e-1


def test_the_eps_of_the_l2_norm_stands_on_the_sum() -> None:
    small = torch.full((128,), 1e-4, dtype=torch.float64)
    total = 128 * 1e-8
    assert error(small / math.sqrt(total + 1e-6), l2_norm(small)) < EXACT
    assert error(small / math.sqrt(total + 128e-6), l2_norm(small)) > 1e-3, "eps on the mean"
    assert error(small / math.sqrt(total), l2_norm(small)) > 1e-3, "no eps"


def test_the_released_section_interleaves_the_axes() -> None:
    axes = axis_of_frequency(32, (11, 11, 10)).tolist()
    assert axes == [0, 1, 2] * 10 + [0, 1]
    assert axis_of_frequency(8, (3, 3, 2)).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert axis_of_frequency(8, (6, 1, 1)).tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_rope_turns_pairs_half_the_slice_apart_and_scores_are_relative() -> None:
    positions = torch.arange(6).expand(3, -1)
    angle = angles(positions, 8, 1e4, (2, 1, 1), torch.float64)
    assert (
        error(torch.arange(6.0).double()[:, None] * (1e4 ** (-torch.arange(0, 8, 2) / 8)).double(), angle)
        < 1e-6
    )
    x = normal(6, 2, 12)
    turned = rotate(x, angle)
    assert torch.equal(turned[..., 8:], x[..., 8:]) and error(x.norm(dim=-1), turned.norm(dim=-1)) < EXACT
    plane = torch.complex(x[..., :4], x[..., 4:8]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    assert error(torch.cat([plane.real, plane.imag], -1), turned[..., :8]) < EXACT
    later = rotate(x, angles(positions + 100, 8, 1e4, (2, 1, 1), torch.float64))
    scores = torch.einsum("thd,shd->hts", turned, turned)
    assert error(scores, torch.einsum("thd,shd->hts", later, later)) < 1e-9
    assert error(turned, later) > 1e-1


def test_attention_is_causal_by_position_and_groups_heads_in_order() -> None:
    query, keys, values = normal(2, 6, 4), normal(5, 2, 4, seed=1), normal(5, 2, 3, seed=2)
    mixed = attention(query, keys, values, torch.tensor([2, 4]))
    for row, last in enumerate((2, 4)):
        for head in range(6):
            scores = keys[: last + 1, head // 3] @ query[row, head] / 2
            expected = torch.softmax(scores, 0) @ values[: last + 1, head // 3]
            assert error(expected, mixed[row, head]) < EXACT
    keys[3:], values[3:] = math.nan, 0.0
    assert error(mixed[:1], attention(query[:1], keys, values, torch.tensor([2]))) < EXACT, (
        "later keys are not read"
    )


def test_routing_takes_the_largest_lower_id_first_and_renormalises() -> None:
    x, router = torch.ones(1, 1, dtype=torch.float64), torch.tensor([[0.0], [1.0], [1.0], [1.0]]).double()
    weights, ids = route(x, router, 2)
    assert ids.tolist() == [[1, 2]] and error(torch.tensor([[0.5, 0.5]]), weights) < EXACT
    many = (torch.arange(256) % 4 == 3).double()[:, None]
    assert route(x, many, 8)[1].tolist() == [list(range(3, 35, 4))]


def test_experts_sum_their_weighted_mlps() -> None:
    x, router, gate_up, down = (
        normal(3, 4),
        normal(5, 4, seed=1),
        normal(5, 6, 4, seed=2),
        normal(5, 4, 3, seed=3),
    )
    probabilities = torch.softmax(x @ router.T, -1)
    chosen = probabilities * (probabilities >= probabilities.topk(2).values[:, 1:])
    chosen = chosen / chosen.sum(-1, keepdim=True)
    inner = torch.einsum("eih,th->tei", gate_up, x)
    each = torch.einsum("ehi,tei->teh", down, torch.nn.functional.silu(inner[..., :3]) * inner[..., 3:])
    expected = torch.einsum("te,teh->th", chosen, each)
    assert error(expected, experts(x, router, gate_up, down, 2)) < EXACT
    assert error(expected, experts(x, router, gate_up, down, 3)) > 1e-2
