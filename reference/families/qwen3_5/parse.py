"""config.json to a Config, or an error that names field and value (specs qwen3_5 1.1, 1.2)."""

import json
import math
from pathlib import Path
from typing import Any

from ft.reference.families.qwen3_5.config import Config

MODEL_TYPES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_mtp")
LAYER_TYPES = ("linear_attention", "full_attention")
MROPE_SECTION = (11, 11, 10)


class ConfigError(ValueError):
    """A field that is missing, of the wrong type or not supported."""


def read(folder: Path) -> Config:
    """The configuration of a checkpoint folder. ConfigError names the file, or the field and its value."""
    return parse(read_raw(folder))


def read_raw(folder: Path) -> dict[str, Any]:
    """config.json as it stands."""
    path = Path(folder) / "config.json"
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); name the folder of a checkpoint"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds {type(raw).__name__}, not an object")
    return raw


class Fields:
    """Typed access to the text fields, with the outer ones behind them."""

    def __init__(self, raw: dict[str, Any]) -> None:
        text = raw.get("text_config", raw)
        if not isinstance(text, dict):
            raise ConfigError(f"text_config is {text!r}; it must be an object")
        self.text = text
        self.raw = raw

    def get(self, name: str) -> Any:
        value = self.text.get(name)
        return self.raw.get(name) if value is None else value

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise ConfigError(f"{name} is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}; it must be an integer of at least {least}")
        return value

    def real(self, name: str, value: Any) -> float:
        if value is None:
            raise ConfigError(f"{name} is missing")
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise ConfigError(f"{name} is {value!r}; it must be a positive number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; it must be true or false")
        return value

    def expect(self, name: str, allowed: tuple[Any, ...]) -> None:
        """The field is absent or one of the supported values."""
        value = self.get(name)
        if value is not None and value not in allowed:
            listed = ", ".join(repr(one) for one in allowed)
            raise ConfigError(f"{name} is {value!r}; supported: {listed}")


def parse(raw: dict[str, Any]) -> Config:
    """A Config from the nested or the flat form."""
    fields = Fields(raw)
    fields.expect("model_type", MODEL_TYPES)
    fields.expect("hidden_act", ("silu",))
    fields.expect("attention_bias", (False,))
    fields.expect("attn_output_gate", (True,))
    fields.expect("output_gate_type", ("swish", "silu"))
    fields.expect("norm_topk_prob", (True,))
    fields.expect("mamba_ssm_dtype", ("float32",))
    fields.expect("mtp_use_dedicated_embeddings", (False,))
    if fields.get("quantization_config") is not None:
        raise ConfigError(
            "quantization_config is set; quantised checkpoints are not supported, take the bf16 one"
        )
    head_dim = fields.integer("head_dim")
    rope = _rope(fields, head_dim)
    experts = fields.integer("num_experts", default=0, least=0)
    if "moe" in str(fields.text.get("model_type", "")) and not experts:
        raise ConfigError(f"model_type is {fields.text['model_type']!r}, and num_experts is missing")
    config = Config(
        vocabulary=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size"),
        layer_types=_layer_types(fields),
        query_heads=fields.integer("num_attention_heads"),
        kv_heads=fields.integer("num_key_value_heads"),
        head_dim=head_dim,
        **rope,
        rms_eps=fields.real("rms_norm_eps", fields.get("rms_norm_eps")),
        context=fields.integer("max_position_embeddings"),
        tied=fields.boolean("tie_word_embeddings", default=False),
        linear_key_heads=fields.integer("linear_num_key_heads"),
        linear_value_heads=fields.integer("linear_num_value_heads"),
        linear_key_dim=fields.integer("linear_key_head_dim"),
        linear_value_dim=fields.integer("linear_value_head_dim"),
        conv_taps=fields.integer("linear_conv_kernel_dim", least=2),
        intermediate=fields.integer("intermediate_size") if not experts else 0,
        experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok") if experts else 0,
        expert_intermediate=fields.integer("moe_intermediate_size") if experts else 0,
        shared_intermediate=fields.integer("shared_expert_intermediate_size") if experts else 0,
        mtp_layers=_mtp_layers(fields),
    )
    _check_sizes(config)
    return config


def _rope(fields: Fields, head_dim: int) -> dict[str, Any]:
    rope = _rope_fields(fields)
    theta = rope.get("rope_theta", fields.get("rope_theta"))
    if theta is None:
        raise ConfigError(
            "rope_theta is missing; libraries fall back to different values, so it must be given"
        )
    factor = fields.real(
        "partial_rotary_factor",
        rope.get("partial_rotary_factor", fields.get("partial_rotary_factor") or 0.25),
    )
    rotary = round(head_dim * factor)
    if rotary < 2 or rotary % 2 or rotary > head_dim or not math.isclose(rotary, head_dim * factor):
        raise ConfigError(
            f"partial_rotary_factor is {factor}; of head_dim {head_dim} it must leave an even number of dims"
        )
    section = _mrope_section(rope.get("mrope_section"), rotary // 2)
    if rope.get("mrope_interleaved") is False:
        raise ConfigError("mrope_interleaved is False; supported: True")
    return {"rotary_dims": rotary, "rope_theta": fields.real("rope_theta", theta), "mrope_section": section}


def _rope_fields(fields: Fields) -> dict[str, Any]:
    """rope_scaling, the older name, with rope_parameters over it."""
    found: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"{name} is {value!r}; it must be an object")
        kind = value.get("rope_type") or value.get("type") or "default"
        if kind != "default":
            raise ConfigError(f"rope_type is {kind!r} in {name}; supported: 'default'")
        found.update(value)
    return found


def _mrope_section(section: Any, half: int) -> tuple[int, int, int]:
    """Frequencies turned by (t, h, w). A text-only release leaves the list of its family out."""
    if section is None and half == sum(MROPE_SECTION):
        return MROPE_SECTION
    if isinstance(section, list) and [type(count) for count in section] == [int, int, int]:
        t, h, w = section
        if min(section) >= 0 and t + h + w == half:
            return t, h, w
    raise ConfigError(f"mrope_section is {section!r}; it must be three integers that sum to {half}")


def _layer_types(fields: Fields) -> tuple[str, ...]:
    count = fields.integer("num_hidden_layers")
    listed = fields.get("layer_types")
    if listed is None:
        interval = fields.integer("full_attention_interval", default=4)
        return tuple(LAYER_TYPES[(index + 1) % interval == 0] for index in range(count))
    if not isinstance(listed, list):
        raise ConfigError(f"layer_types is {listed!r}; it must be a list")
    if len(listed) != count:
        raise ConfigError(f"layer_types has {len(listed)} entries; num_hidden_layers is {count}")
    unknown = next((item for item in listed if item not in LAYER_TYPES), None)
    if unknown is not None:
        raise ConfigError(f"layer_types holds {unknown!r}; supported: {', '.join(LAYER_TYPES)}")
    return tuple(listed)


def _mtp_layers(fields: Fields) -> int:
    renamed = "qwen3_5_mtp" in (fields.raw.get("model_type"), fields.text.get("model_type"))
    count = fields.integer("mtp_num_hidden_layers", default=1 if renamed else 0, least=0)
    if count > 1:
        raise ConfigError(f"mtp_num_hidden_layers is {count}; at most 1 is supported")
    return count


def _check_sizes(config: Config) -> None:
    pairs = (
        ("num_attention_heads", config.query_heads, "num_key_value_heads", config.kv_heads),
        (
            "linear_num_value_heads",
            config.linear_value_heads,
            "linear_num_key_heads",
            config.linear_key_heads,
        ),
    )
    for name, value, other, divisor in pairs:
        if value % divisor:
            raise ConfigError(f"{name} is {value}; it must be a multiple of {other}, {divisor}")
    if not config.is_full_attention(config.layers - 1):
        raise ConfigError(
            f"the last layer, {config.layers - 1}, is {config.layer_types[-1]!r}; supported: 'full_attention'"
        )
    if config.experts_per_token > config.experts:
        raise ConfigError(
            f"num_experts_per_tok is {config.experts_per_token}; there are {config.experts} experts"
        )
