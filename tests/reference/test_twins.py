"""Wrong twins of the model, one convention each. Every one must miss the stored values by far, or the values could
not tell it from the right one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ft.reference.families.qwen3_5 import drafts, layers, target
from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.drafts import MTPDraft
from ft.reference.families.qwen3_5.target import ReferenceTarget
from ft.reference.families.qwen3_5.weights import AttentionWeights, LayerWeights, MoEWeights
from ft.reference.ops import gated_delta, moe, norm, rope
from ft.reference.ops.gated_delta import gated_delta_step
from ft.reference.proposers.mtp import MTPProposer
from ft.reference.types import Features, Step

from .rig import Model, error, golden, load, run, step_of_requests, tokens
from .test_goldens import mtp_chain, mtp_errors, target_errors

BROKEN = 1e-2
"""A thousand times the limit in fp64."""

Patch = pytest.MonkeyPatch
Apply = Callable[[Patch, Model], Model]


@dataclass(frozen=True)
class Twin:
    name: str
    apply: Apply
    case: str = "qwen3_5_dense"


def patch(*places: tuple[Any, str], by: Callable[[Any], Any]) -> Apply:
    """Replace functions by what `by` makes of them."""

    def apply(monkeypatch: Patch, model: Model) -> Model:
        for owner, name in places:
            monkeypatch.setattr(owner, name, by(getattr(owner, name)))
        return model

    return apply


def weights(change: Callable[[Any, Config], Any], kind: type) -> Apply:
    """Change the mixer or MLP weights of that kind in every layer."""

    def layer(weights: LayerWeights, config: Config) -> LayerWeights:
        new = {
            name: change(getattr(weights, name), config)
            for name in ("mixer", "mlp")
            if isinstance(getattr(weights, name), kind)
        }
        return replace(weights, **new)

    def apply(_: Patch, model: Model) -> Model:
        changed = tuple(layer(one, model.config) for one in model.trunk.layers)
        return replace(model, trunk=replace(model.trunk, layers=changed))

    return apply


def split_in_halves(mixer: AttentionWeights, config: Config) -> AttentionWeights:
    """Rows so that the per-head split gives what all queries first, then all gates would give."""
    queries, gates = mixer.q.chunk(2)
    shape = (config.query_heads, config.head_dim, config.hidden)
    return replace(mixer, q=torch.cat([queries.view(shape), gates.view(shape)], 1).reshape(mixer.q.shape))


def by_modulo(gated: Callable[..., Any]) -> Callable[..., Any]:
    """Value head h reads key head h mod Hk in place of h // (Hv / Hk); r = 3, Hk = 2 in the stored case."""
    heads = (torch.arange(6) % 2) * 3
    return lambda state, q, k, *rest: gated(state, q[:, heads], k[:, heads], *rest)


def read_before_write(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Any:
    old = state * torch.exp(g)[:, None, None]
    _, new = gated_delta_step(state, q, k, v, g, beta)
    return torch.einsum("hkv,hk->hv", old, q), new


def pair_neighbours(x: Tensor, angle: Tensor) -> Tensor:
    rotary = 2 * angle.shape[-1]
    order = torch.cat([torch.arange(0, rotary, 2), torch.arange(1, rotary, 2)])
    turned = x.clone()
    turned[..., order] = rope_rotate(x[..., order], angle)
    turned[..., rotary:] = x[..., rotary:]
    return turned


rope_rotate = rope.rotate
CENTRED = ((layers, "centred_rms_norm"), (target, "centred_rms_norm"))
DELTA, ATTENTION = (layers, "gated_delta"), (layers, "attention")
GATED_NORM = (layers, "gated_rms_norm")
MOE = "qwen3_5_moe"

TARGET_TWINS = (
    Twin("key head by modulo", patch(DELTA, by=by_modulo)),
    Twin("plain norms for 1 + w", patch(*CENTRED, by=lambda _: norm.rms_norm)),
    Twin("1 + w for the gated norm", patch(GATED_NORM, by=lambda f: lambda x, z, w, e: f(x, z, 1 + w, e))),
    Twin(
        "gate before norm",
        patch(
            GATED_NORM, by=lambda _: lambda x, z, w, e: norm.rms_norm(x * torch.nn.functional.silu(z), w, e)
        ),
    ),
    Twin(
        "conv taps reversed", patch((layers, "causal_conv"), by=lambda f: lambda x, s, w: f(x, s, w.flip(1)))
    ),
    Twin(
        "query scale of the delta rule omitted", patch(DELTA, by=lambda f: lambda s, q, *r: f(s, q * 4, *r))
    ),
    Twin("score scale omitted", patch(ATTENTION, by=lambda f: lambda q, *r: f(q * 8, *r))),
    Twin("no l2 norm", patch((layers, "l2_norm"), by=lambda _: lambda x: x)),
    Twin("read before write", patch((gated_delta, "gated_delta_step"), by=lambda _: read_before_write)),
    Twin("decay omitted", patch(DELTA, by=lambda f: lambda s, q, k, v, g, b: f(s, q, k, v, 0 * g, b))),
    Twin("beta omitted", patch(DELTA, by=lambda f: lambda s, q, k, v, g, b: f(s, q, k, v, g, 0 * b + 1))),
    Twin("rope on neighbouring pairs", patch((rope, "rotate"), by=lambda _: pair_neighbours)),
    Twin(
        "rope exponent over the head size",
        patch((rope, "angles"), by=lambda f: lambda p, r, t, s, d: f(p, r, t ** (r / 64), s, d)),
    ),
    Twin("rope left out", patch((rope, "rotate"), by=lambda _: lambda x, angle: x)),
    Twin("query and gate split in halves", weights(split_in_halves, AttentionWeights)),
    Twin(
        "no renormalised routing",
        patch((moe, "route"), by=lambda _: lambda x, r, k: torch.softmax(x @ r.T, -1).topk(k)),
        MOE,
    ),
    Twin("one expert fewer", patch((moe, "route"), by=lambda f: lambda x, r, k: f(x, r, k - 1)), MOE),
    Twin(
        "up rows before gate rows",
        weights(
            lambda mlp, _: replace(mlp, gate_up=mlp.gate_up.roll(mlp.gate_up.shape[1] // 2, 1)), MoEWeights
        ),
        MOE,
    ),
    Twin(
        "shared expert without its gate",
        weights(lambda mlp, _: replace(mlp, shared_gate=mlp.shared_gate * 1e6), MoEWeights),
        MOE,
    ),
)


@pytest.mark.parametrize("twin", TARGET_TWINS, ids=lambda twin: twin.name)
def test_the_stored_values_see_a_wrong_target(twin: Twin, monkeypatch: Patch) -> None:
    model, expected = golden(twin.case)
    errors = target_errors(twin.apply(monkeypatch, model), expected, "long")
    assert errors["logits"] > BROKEN and errors["hidden"] > BROKEN, errors


def hidden_first(_: Patch, model: Model) -> Model:
    fc = model.mtp.fc.roll(model.config.hidden, dims=1)
    return replace(model, mtp=replace(model.mtp, fc=fc))


def before_final_norm(forward: Callable[..., Features]) -> Callable[..., Features]:
    """The target hands out its last layer's output in place of the normed one."""

    def broken(self: ReferenceTarget, step: Step) -> Features:
        last = self.config.layers - 1
        return Features(forward(self, replace(step, taps=(last,))).layer_output(last))

    return broken


def own_tokens(on_prefill: Callable[..., None]) -> Callable[..., None]:
    """Slot i pairs with token i in place of i+1."""
    return lambda self, step, features, next_ids: on_prefill(self, step, features, step.token_ids)


def chained_before_norm(monkeypatch: Patch, model: Model) -> Model:
    """The chain carries the block's output; only the head sees it normed."""
    right = norm.centred_rms_norm
    skip = lambda x, w, e: x if w is model.mtp.norm else right(x, w, e)
    logits = MTPDraft.logits
    monkeypatch.setattr(drafts, "centred_rms_norm", skip)
    normed = lambda self, x: logits(self, right(x, model.mtp.norm, model.config.rms_eps))
    monkeypatch.setattr(MTPDraft, "logits", normed)
    return model


def trunk_norm_again(logits: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, x: logits(
        self, norm.centred_rms_norm(x, self.target.weights.norm, self.target.config.rms_eps)
    )


def still_positions(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Every row turns as if it stood at position 0."""
    return lambda self, slot, ids, hidden, at, rope: forward(self, slot, ids, hidden, at, 0 * rope)


MTP_TWINS = (
    Twin("hidden half first", hidden_first),
    Twin("hidden before the final norm", patch((ReferenceTarget, "forward"), by=before_final_norm)),
    Twin("plain MTP norms", patch((drafts, "centred_rms_norm"), by=lambda _: norm.rms_norm)),
    Twin("tokens not shifted", patch((MTPProposer, "on_prefill"), by=own_tokens)),
    Twin("chain before the MTP norm", chained_before_norm),
    Twin("trunk norm on top", patch((MTPDraft, "logits"), by=trunk_norm_again)),
    Twin("draft rope left out", patch((MTPDraft, "forward"), by=still_positions)),
)


@pytest.mark.parametrize("case", ["qwen3_5_dense", MOE])
@pytest.mark.parametrize("twin", MTP_TWINS, ids=lambda twin: twin.name)
def test_the_stored_values_see_a_wrong_head(twin: Twin, case: str, monkeypatch: Patch) -> None:
    model, expected = golden(case)
    broken = twin.apply(monkeypatch, model)
    rows = range(len(expected["mtp.anchors"]))
    worst = max(mtp_errors(mtp_chain(broken, expected, row), expected, row)["logits"] for row in rows)
    assert worst > BROKEN


def test_three_axes_see_contiguous_sections(tiny: dict[str, Any], monkeypatch: Patch) -> None:
    model = load(tiny["dense"])
    ids = tokens(40, model.config.vocabulary)
    axes = torch.randint(0, 90, (3, 1, 40), generator=torch.Generator().manual_seed(1))
    step = replace(step_of_requests([ids], [0], [0]), rope_positions=axes)
    right = run(model.target(), step).final_hidden
    monkeypatch.setattr(
        rope, "axis_of_frequency", lambda half, s: torch.tensor([0] * s[0] + [1] * s[1] + [2] * s[2])
    )
    assert error(right, run(model.target(), step).final_hidden) > BROKEN
