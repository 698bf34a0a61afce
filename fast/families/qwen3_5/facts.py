"""What the plan needs of a Qwen3.5 config, counted from the shapes of specs qwen3_5 1.4, 4 and 5.1."""

from collections.abc import Sequence

from ft.fast.inputs import CheckpointFacts
from ft.reference.families.qwen3_5.config import Config

MTP_TENSOR = "mtp.fc.weight"


def facts(config: Config, names: Sequence[str] | None, stored_bytes: int) -> CheckpointFacts:
    """The numbers of one checkpoint. names: its stored tensors, None for a dummy, which has all that it should."""
    has_mtp = config.mtp_layers > 0 if names is None else any(name.endswith(MTP_TENSOR) for name in names)
    full = sum(config.is_full_attention(layer) for layer in range(config.layers))
    linear = config.layers - full
    vocabulary = config.vocabulary * config.hidden
    blocks = full * attention_parameters(config) + linear * linear_parameters(config)
    blocks += config.layers * shared_parameters(config)
    return CheckpointFacts(
        family="qwen3_5",
        vocabulary=config.vocabulary,
        hidden=config.hidden,
        context=config.context,
        attention_layers=full,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        linear_layers=linear,
        linear_key_heads=config.linear_key_heads,
        linear_value_heads=config.linear_value_heads,
        linear_key_dim=config.linear_key_dim,
        linear_value_dim=config.linear_value_dim,
        conv_channels=config.conv_channels,
        conv_taps=config.conv_taps,
        widest=max(2 * _mlp_width(config), 2 * config.query_heads * config.head_dim, config.conv_channels),
        parameters=vocabulary * (1 if config.tied else 2) + blocks + config.hidden,
        draft_parameters=mtp_parameters(config) if has_mtp else 0,
        mtp_layers=config.mtp_layers,
        has_mtp=has_mtp,
        stored_bytes=stored_bytes,
    )


def attention_parameters(config: Config) -> int:
    """q with its gate, k, v, o and the two head norms."""
    rows = 3 * config.query_heads + 2 * config.kv_heads
    return rows * config.head_dim * config.hidden + 2 * config.head_dim


def linear_parameters(config: Config) -> int:
    """qkv, z, b, a, conv, A_log, dt_bias, the gated norm and the output."""
    value = config.linear_value_heads * config.linear_value_dim
    matrices = (config.conv_channels + 2 * value + 2 * config.linear_value_heads) * config.hidden
    conv = config.conv_channels * config.conv_taps
    return matrices + conv + 2 * config.linear_value_heads + config.linear_value_dim


def shared_parameters(config: Config) -> int:
    """What every block has beside its mixer: the two norms and the MLP."""
    return 2 * config.hidden + _mlp_parameters(config)


def mtp_parameters(config: Config) -> int:
    """Fusion, three norms and one full-attention block."""
    fusion = 2 * config.hidden * config.hidden + 3 * config.hidden
    return fusion + attention_parameters(config) + shared_parameters(config)


def _mlp_parameters(config: Config) -> int:
    if not config.experts:
        return 3 * config.intermediate * config.hidden
    experts = config.experts * (1 + 3 * config.expert_intermediate)
    return (experts + 3 * config.shared_intermediate + 1) * config.hidden


def _mlp_width(config: Config) -> int:
    if not config.experts:
        return config.intermediate
    return max(config.expert_intermediate, config.shared_intermediate)
