"""Released tensor names to weights by role (specs qwen3_5 1.4, 4, 5.1). Errors name file and tensor."""

import torch
from torch import Tensor

from ft.reference.families.qwen3_5.config import Config
from ft.reference.families.qwen3_5.weights import (
    AttentionWeights,
    DenseWeights,
    GatedDeltaNetWeights,
    LayerWeights,
    MoEWeights,
    MTPWeights,
    TargetWeights,
)
from ft.reference.weights.safetensors import Checkpoint, CheckpointError

TRUNKS = ("model.language_model.", "model.")
VISION = ("model.visual.", "visual.")
MTP_PREFIXES = ("mtp.", "model.mtp.")
SCALES = (
    "_scale",
    "_scale_inv",
    "_scale_2",
    ".scale",
    ".scales",
    ".qweight",
    ".qzeros",
    "_packed",
    ".absmax",
)
"""Endings of the tensors that stand beside quantised weights, in the spellings of the common quantisers."""


def load_target(checkpoint: Checkpoint, config: Config) -> TargetWeights:
    """The trunk, with nothing left over but vision and MTP tensors."""
    prefix = _prefix(checkpoint)
    _refuse_quantised(checkpoint, [n for n in checkpoint.names if not n.startswith((*VISION, *MTP_PREFIXES))])
    hidden, vocabulary = config.hidden, config.vocabulary
    embedding = checkpoint.take(f"{prefix}embed_tokens.weight", (vocabulary, hidden))
    layers = tuple(
        _layer(checkpoint, config, f"{prefix}layers.{index}.", config.is_full_attention(index))
        for index in range(config.layers)
    )
    norm = checkpoint.take(f"{prefix}norm.weight", (hidden,))
    weights = TargetWeights(embedding, layers, norm, _head(checkpoint, config, embedding))
    checkpoint.finish(ignored=(*VISION, *MTP_PREFIXES))
    return weights


def has_mtp(checkpoint: Checkpoint) -> bool:
    return any(name.startswith(MTP_PREFIXES) for name in checkpoint.names)


def load_mtp(checkpoint: Checkpoint, config: Config) -> MTPWeights:
    """The MTP head, with no mtp tensor left over."""
    if not has_mtp(checkpoint):
        raise CheckpointError(
            f"{checkpoint.folder}: no mtp.* tensors (mtp_num_hidden_layers in the config is {config.mtp_layers}); "
            "take a checkpoint that has its MTP head, or turn speculation off"
        )
    if config.mtp_layers != 1:
        raise CheckpointError(
            f"{checkpoint.folder}: there are mtp.* tensors, and the config's mtp_num_hidden_layers is "
            f"{config.mtp_layers}; set it to 1"
        )
    prefix = next(p for p in MTP_PREFIXES if any(name.startswith(p) for name in checkpoint.names))
    _refuse_quantised(checkpoint, [name for name in checkpoint.names if name.startswith(MTP_PREFIXES)])
    hidden = config.hidden
    weights = MTPWeights(
        fc=checkpoint.take(f"{prefix}fc.weight", (hidden, 2 * hidden)),
        embedding_norm=checkpoint.take(f"{prefix}pre_fc_norm_embedding.weight", (hidden,)),
        hidden_norm=checkpoint.take(f"{prefix}pre_fc_norm_hidden.weight", (hidden,)),
        layer=_layer(checkpoint, config, f"{prefix}layers.0.", full=True),
        norm=checkpoint.take(f"{prefix}norm.weight", (hidden,)),
    )
    checkpoint.finish(within=MTP_PREFIXES)
    return weights


def _refuse_quantised(checkpoint: Checkpoint, names: list[str]) -> None:
    scale = next((name for name in names if name.endswith(SCALES)), None)
    if scale is not None:
        raise CheckpointError(
            f"{checkpoint.folder}: tensor {scale} belongs to quantised weights, which are not supported; "
            "take the bf16 checkpoint"
        )


def _prefix(checkpoint: Checkpoint) -> str:
    for prefix in TRUNKS:
        if checkpoint.has(f"{prefix}embed_tokens.weight"):
            return prefix
    raise CheckpointError(
        f"{checkpoint.folder}: no trunk; neither {TRUNKS[0]}embed_tokens.weight nor {TRUNKS[1]}embed_tokens.weight"
    )


def _head(checkpoint: Checkpoint, config: Config, embedding: Tensor) -> Tensor:
    name = "lm_head.weight"
    if not config.tied:
        return checkpoint.take(name, (config.vocabulary, config.hidden))
    if checkpoint.has(name) and not torch.equal(checkpoint.take(name, embedding.shape), embedding):
        raise CheckpointError(
            f"{checkpoint.folder}: tie_word_embeddings is true, and {name} differs from the embedding"
        )
    return embedding


def _layer(checkpoint: Checkpoint, config: Config, prefix: str, full: bool) -> LayerWeights:
    mixer = (
        _attention(checkpoint, config, f"{prefix}self_attn.") if full else _delta(checkpoint, config, prefix)
    )
    return LayerWeights(
        input_norm=checkpoint.take(f"{prefix}input_layernorm.weight", (config.hidden,)),
        mixer=mixer,
        post_attention_norm=checkpoint.take(f"{prefix}post_attention_layernorm.weight", (config.hidden,)),
        mlp=_moe(checkpoint, config, prefix)
        if config.experts
        else _dense(checkpoint, config, prefix, "mlp.", config.intermediate),
    )


def _attention(checkpoint: Checkpoint, config: Config, prefix: str) -> AttentionWeights:
    hidden, dim = config.hidden, config.head_dim
    queries, keys = config.query_heads * dim, config.kv_heads * dim
    return AttentionWeights(
        q=checkpoint.take(f"{prefix}q_proj.weight", (2 * queries, hidden)),
        k=checkpoint.take(f"{prefix}k_proj.weight", (keys, hidden)),
        v=checkpoint.take(f"{prefix}v_proj.weight", (keys, hidden)),
        o=checkpoint.take(f"{prefix}o_proj.weight", (hidden, queries)),
        q_norm=checkpoint.take(f"{prefix}q_norm.weight", (dim,)),
        k_norm=checkpoint.take(f"{prefix}k_norm.weight", (dim,)),
    )


def _delta(checkpoint: Checkpoint, config: Config, layer: str) -> GatedDeltaNetWeights:
    prefix, hidden, heads = f"{layer}linear_attn.", config.hidden, config.linear_value_heads
    values, channels = heads * config.linear_value_dim, config.conv_channels
    return GatedDeltaNetWeights(
        qkv=checkpoint.take(f"{prefix}in_proj_qkv.weight", (channels, hidden)),
        z=checkpoint.take(f"{prefix}in_proj_z.weight", (values, hidden)),
        b=checkpoint.take(f"{prefix}in_proj_b.weight", (heads, hidden)),
        a=checkpoint.take(f"{prefix}in_proj_a.weight", (heads, hidden)),
        conv=checkpoint.take(f"{prefix}conv1d.weight", (channels, 1, config.conv_taps))[:, 0],
        a_log=checkpoint.take(f"{prefix}A_log", (heads,)),
        dt_bias=checkpoint.take(f"{prefix}dt_bias", (heads,)),
        norm=checkpoint.take(f"{prefix}norm.weight", (config.linear_value_dim,)),
        out=checkpoint.take(f"{prefix}out_proj.weight", (hidden, values)),
    )


def _dense(checkpoint: Checkpoint, config: Config, layer: str, part: str, width: int) -> DenseWeights:
    prefix, hidden = layer + part, config.hidden
    return DenseWeights(
        gate=checkpoint.take(f"{prefix}gate_proj.weight", (width, hidden)),
        up=checkpoint.take(f"{prefix}up_proj.weight", (width, hidden)),
        down=checkpoint.take(f"{prefix}down_proj.weight", (hidden, width)),
    )


def _moe(checkpoint: Checkpoint, config: Config, layer: str) -> MoEWeights:
    prefix, hidden, experts, width = f"{layer}mlp.", config.hidden, config.experts, config.expert_intermediate
    if checkpoint.has(f"{prefix}experts.gate_up_proj"):
        gate_up = checkpoint.take(f"{prefix}experts.gate_up_proj", (experts, 2 * width, hidden))
        down = checkpoint.take(f"{prefix}experts.down_proj", (experts, hidden, width))
    else:
        each = [
            _dense(checkpoint, config, layer, f"mlp.experts.{expert}.", width) for expert in range(experts)
        ]
        gate_up = torch.stack([torch.cat([one.gate, one.up]) for one in each])
        down = torch.stack([one.down for one in each])
    return MoEWeights(
        router=checkpoint.take(f"{prefix}gate.weight", (experts, hidden)),
        gate_up=gate_up,
        down=down,
        shared=_dense(checkpoint, config, layer, "mlp.shared_expert.", config.shared_intermediate),
        shared_gate=checkpoint.take(f"{prefix}shared_expert_gate.weight", (1, hidden)),
    )
