"""The demo's network for training: parameters under their released names, bf16 products, chunked recurrence.

Formulas: specs qwen3_5 2-5. It is written for gradients and large batches, and is checked against transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64


@dataclass(frozen=True)
class Shape:
    """Sizes of the demo; the fields of its config.json follow from them."""

    vocabulary: int = 4096
    hidden: int = 256
    layers: int = 8
    ffn: int = 576
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: int = 16
    theta: float = 1e6
    key_heads: int = 4
    value_heads: int = 8
    key_dim: int = 32
    value_dim: int = 32
    taps: int = 4
    context: int = 4096

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def full(self, layer: int) -> bool:
        return layer % 4 == 3


Parameters = dict[str, Tensor]


def initial(shape: Shape, seed: int, device: torch.device) -> Parameters:
    """Trunk parameters, fp32."""
    draw = torch.Generator(device=device).manual_seed(seed)
    made: Parameters = {"model.embed_tokens.weight": _matrix(draw, shape.vocabulary, shape.hidden, 0.02)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        made |= _attention(shape, prefix, draw) if shape.full(layer) else _delta(shape, prefix, draw)
        made |= _around(shape, prefix, draw)
    made["model.norm.weight"] = torch.zeros(shape.hidden, device=device)
    return made


def initial_mtp(shape: Shape, seed: int, device: torch.device) -> Parameters:
    """MTP parameters, fp32."""
    draw = torch.Generator(device=device).manual_seed(seed)
    made = {"mtp.fc.weight": _matrix(draw, shape.hidden, 2 * shape.hidden, 0.03)}
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        made[f"mtp.{name}.weight"] = torch.zeros(shape.hidden, device=device)
    return made | _attention(shape, "mtp.layers.0.", draw) | _around(shape, "mtp.layers.0.", draw)


def _matrix(draw: torch.Generator, rows: int, columns: int, scale: float) -> Tensor:
    return torch.randn(rows, columns, generator=draw, device=draw.device) * scale


def _around(shape: Shape, prefix: str, draw: torch.Generator) -> Parameters:
    out = 0.02 / (2 * shape.layers) ** 0.5
    return {
        f"{prefix}input_layernorm.weight": torch.zeros(shape.hidden, device=draw.device),
        f"{prefix}post_attention_layernorm.weight": torch.zeros(shape.hidden, device=draw.device),
        f"{prefix}mlp.gate_proj.weight": _matrix(draw, shape.ffn, shape.hidden, 0.02),
        f"{prefix}mlp.up_proj.weight": _matrix(draw, shape.ffn, shape.hidden, 0.02),
        f"{prefix}mlp.down_proj.weight": _matrix(draw, shape.hidden, shape.ffn, out),
    }


def _attention(shape: Shape, prefix: str, draw: torch.Generator) -> Parameters:
    prefix, dim = f"{prefix}self_attn.", shape.head_dim
    return {
        f"{prefix}q_proj.weight": _matrix(draw, 2 * shape.heads * dim, shape.hidden, 0.02),
        f"{prefix}k_proj.weight": _matrix(draw, shape.kv_heads * dim, shape.hidden, 0.02),
        f"{prefix}v_proj.weight": _matrix(draw, shape.kv_heads * dim, shape.hidden, 0.02),
        f"{prefix}o_proj.weight": _matrix(
            draw, shape.hidden, shape.heads * dim, 0.02 / (2 * shape.layers) ** 0.5
        ),
        f"{prefix}q_norm.weight": torch.zeros(dim, device=draw.device),
        f"{prefix}k_norm.weight": torch.zeros(dim, device=draw.device),
    }


def _delta(shape: Shape, prefix: str, draw: torch.Generator) -> Parameters:
    prefix, heads = f"{prefix}linear_attn.", shape.value_heads
    values = heads * shape.value_dim
    uniform = torch.rand(2, heads, generator=draw, device=draw.device)
    steps = torch.exp(uniform[0] * 4.6 - 6.9)
    return {
        f"{prefix}in_proj_qkv.weight": _matrix(draw, shape.channels, shape.hidden, 0.02),
        f"{prefix}in_proj_z.weight": _matrix(draw, values, shape.hidden, 0.02),
        f"{prefix}in_proj_b.weight": _matrix(draw, heads, shape.hidden, 0.02),
        f"{prefix}in_proj_a.weight": _matrix(draw, heads, shape.hidden, 0.02),
        f"{prefix}conv1d.weight": _matrix(draw, shape.channels, shape.taps, 0.3)[:, None],
        f"{prefix}A_log": torch.log(1 + 15 * uniform[1]),
        f"{prefix}dt_bias": torch.log(torch.expm1(steps)),
        f"{prefix}norm.weight": torch.ones(shape.value_dim, device=draw.device),
        f"{prefix}out_proj.weight": _matrix(draw, shape.hidden, values, 0.02 / (2 * shape.layers) ** 0.5),
    }


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(x, weight.to(x.dtype))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """The 1 + w kind, in fp32 inside."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)).to(x.dtype)


def rotate(x: Tensor, positions: Tensor, shape: Shape) -> Tensor:
    """[B, heads, T, D] at positions [T]."""
    half = shape.rotary // 2
    exponent = torch.arange(half, device=x.device, dtype=torch.float32) * 2 / shape.rotary
    angle = positions[:, None].float() * shape.theta**-exponent
    cosine, sine = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cosine - second * sine, second * cosine + first * sine, x[..., 2 * half :])
    return torch.cat(turned, dim=-1)


@dataclass(frozen=True)
class Heads:
    """Rotated query [B, nq, T, D], key and value [B, nkv, T, D], gate [B, T, nq*D]."""

    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor


def heads_of(x: Tensor, p: Parameters, prefix: str, positions: Tensor, shape: Shape) -> Heads:
    batch, length, _ = x.shape
    joint = linear(x, p[f"{prefix}q_proj.weight"]).view(batch, length, shape.heads, 2, shape.head_dim)
    key = linear(x, p[f"{prefix}k_proj.weight"]).view(batch, length, shape.kv_heads, shape.head_dim)
    value = linear(x, p[f"{prefix}v_proj.weight"]).view(batch, length, shape.kv_heads, shape.head_dim)
    query = norm(joint[:, :, :, 0], p[f"{prefix}q_norm.weight"]).transpose(1, 2)
    key = norm(key, p[f"{prefix}k_norm.weight"]).transpose(1, 2)
    gate = joint[:, :, :, 1].reshape(batch, length, -1)
    return Heads(rotate(query, positions, shape), rotate(key, positions, shape), value.transpose(1, 2), gate)


def attention(x: Tensor, p: Parameters, prefix: str, shape: Shape) -> Tensor:
    heads = heads_of(x, p, prefix, torch.arange(x.shape[1], device=x.device), shape)
    mixed = functional.scaled_dot_product_attention(
        heads.query, heads.key, heads.value, is_causal=True, enable_gqa=True
    )
    return joined(mixed, heads.gate, p[f"{prefix}o_proj.weight"])


def joined(mixed: Tensor, gate: Tensor, out: Tensor) -> Tensor:
    """[B, nq, T, D] and its gate through the output matrix."""
    flat = mixed.transpose(1, 2).flatten(2)
    return linear(flat * torch.sigmoid(gate), out)


def delta(x: Tensor, p: Parameters, prefix: str, shape: Shape) -> Tensor:
    batch, length, _ = x.shape
    inputs = linear(x, p[f"{prefix}in_proj_qkv.weight"]).transpose(1, 2)
    weight = p[f"{prefix}conv1d.weight"].to(x.dtype)
    padded = functional.pad(inputs, (shape.taps - 1, 0))
    mixed = functional.silu(functional.conv1d(padded, weight, groups=shape.channels)).transpose(1, 2).float()
    keys = shape.key_heads * shape.key_dim
    query, key, value = torch.split(mixed, [keys, keys, shape.channels - 2 * keys], dim=-1)
    repeat = shape.value_heads // shape.key_heads
    size = (batch, length, shape.key_heads, shape.key_dim)
    query = _unit(query.view(size)).repeat_interleave(repeat, 2) * shape.key_dim**-0.5
    key = _unit(key.view(size)).repeat_interleave(repeat, 2)
    value = value.view(batch, length, shape.value_heads, shape.value_dim)
    rate = -torch.exp(p[f"{prefix}A_log"])
    decay = rate * functional.softplus(
        linear(x, p[f"{prefix}in_proj_a.weight"]).float() + p[f"{prefix}dt_bias"]
    )
    beta = torch.sigmoid(linear(x, p[f"{prefix}in_proj_b.weight"]).float())
    output = chunked_delta(query, key, value, decay, beta)
    gate = linear(x, p[f"{prefix}in_proj_z.weight"]).view_as(output).float()
    output = output * torch.rsqrt(output.square().mean(-1, keepdim=True) + 1e-6) * p[f"{prefix}norm.weight"]
    flat = (output * functional.silu(gate)).to(x.dtype).flatten(2)
    return linear(flat, p[f"{prefix}out_proj.weight"])


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def chunked_delta(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """[B, T, Hv, ...] fp32, T a multiple of CHUNK -> [B, T, Hv, Dv] (specs qwen3_5 3.4)."""
    batch, length, heads, _ = query.shape
    count = length // CHUNK

    def cells(x: Tensor) -> Tensor:
        return x.view(batch, count, CHUNK, heads, -1).permute(1, 0, 3, 2, 4)

    q, k, v, b = cells(query), cells(key), cells(value), cells(beta[..., None])
    total = cells(decay[..., None])[..., 0].cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    ratio = torch.exp((total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")))
    system = (b * (k @ k.mT) * ratio).tril(-1) + torch.eye(CHUNK, device=q.device)
    right = torch.cat([b * v, b * torch.exp(total)[..., None] * k], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, carried = torch.split(solved, [v.shape[-1], k.shape[-1]], dim=-1)
    within = (q @ k.mT) * ratio
    scaled = q * torch.exp(total)[..., None]
    last = total[..., -1:, None]
    leaving = k * torch.exp(last - total[..., None])
    state = q.new_zeros(batch, heads, k.shape[-1], v.shape[-1])
    outputs = []
    for cell in range(count):
        new = fresh[cell] - carried[cell] @ state
        outputs.append(scaled[cell] @ state + within[cell] @ new)
        state = torch.exp(last[cell]) * state + leaving[cell].mT @ new
    return torch.stack(outputs).permute(1, 0, 3, 2, 4).reshape(batch, length, heads, -1)


def feed_forward(x: Tensor, p: Parameters, prefix: str) -> Tensor:
    """x plus the block's second half."""
    inner = norm(x, p[f"{prefix}post_attention_layernorm.weight"])
    gate = functional.silu(linear(inner, p[f"{prefix}mlp.gate_proj.weight"]))
    return x + linear(
        gate * linear(inner, p[f"{prefix}mlp.up_proj.weight"]), p[f"{prefix}mlp.down_proj.weight"]
    )


def block(x: Tensor, p: Parameters, prefix: str, full: bool, shape: Shape) -> Tensor:
    """One layer; `p` holds the names of this layer only, under `prefix`."""
    inner = norm(x, p[f"{prefix}input_layernorm.weight"])
    mixed = (
        attention(inner, p, f"{prefix}self_attn.", shape)
        if full
        else delta(inner, p, f"{prefix}linear_attn.", shape)
    )
    return feed_forward(x + mixed, p, prefix)


Block = Callable[[Tensor, Parameters, str, bool, Shape], Tensor]


def hidden(ids: Tensor, p: Parameters, shape: Shape, dtype: torch.dtype, run: Block = block) -> Tensor:
    """Final hidden [B, T, H] after the norm, of int64 ids [B, T]."""
    x = functional.embedding(ids, p["model.embed_tokens.weight"]).to(dtype)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        own = {
            f"layer.{name.removeprefix(prefix)}": value
            for name, value in p.items()
            if name.startswith(prefix)
        }
        x = run(x, own, "layer.", shape.full(layer), shape)
    return norm(x, p["model.norm.weight"])


def logits(x: Tensor, p: Parameters) -> Tensor:
    return linear(x, p["model.embed_tokens.weight"])
