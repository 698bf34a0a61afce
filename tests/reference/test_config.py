"""config.json: both forms, every rule, and an error that names field and value for what is not supported."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ft.reference.families.qwen3_5.parse import MODEL_TYPES, ConfigError, parse, read
from ft.reference.families.qwen3_5.tiny import RAW

ABSENT = object()


def changed(base: str = "dense", rope: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A tiny's raw configuration with fields replaced, or taken out by ABSENT."""
    raw = copy.deepcopy(RAW[base])
    for place, changes in ((raw, fields), (raw["rope_parameters"], rope or {})):
        for name, value in changes.items():
            place[name] = value
            if value is ABSENT:
                del place[name]
    return raw


RELEASED_ROPE = {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "default"}


def test_the_flat_form() -> None:
    config = parse(changed())
    assert (config.hidden, config.query_heads, config.kv_heads, config.head_dim) == (48, 6, 2, 64)
    assert (config.rotary_dims, config.rope_theta, config.mrope_section) == (16, 1e4, (3, 3, 2))
    assert config.layer_types == ("linear_attention",) * 3 + ("full_attention",) + (
        "linear_attention",
    ) * 3 + ("full_attention",)
    assert config.conv_channels == 2 * 2 * 16 + 6 * 24
    assert (config.experts, config.intermediate, config.mtp_layers, config.tied) == (0, 80, 1, False)


def test_the_nested_form_is_the_flat_one() -> None:
    text = changed("moe")
    nested = {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {"depth": 1}}
    assert parse(nested) == parse(text)
    assert parse(text).experts == 8 and parse(text).shared_intermediate == 28


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [
        (True, False, False),
        (False, True, True),
        (True, ABSENT, True),
        (ABSENT, True, True),
        (ABSENT, ABSENT, False),
    ],
)
def test_the_inner_tie_flag_is_read_before_the_outer(outer: Any, inner: Any, tied: bool) -> None:
    raw: dict[str, Any] = {"text_config": changed(tie_word_embeddings=inner)}
    if outer is not ABSENT:
        raw["tie_word_embeddings"] = outer
    assert parse(raw).tied is tied


def test_layer_types_win_over_the_interval() -> None:
    listed = ["full_attention"] * 8
    assert parse(changed(layer_types=listed)).layer_types == tuple(listed)
    assert (
        parse(changed(full_attention_interval=2)).layer_types[:4]
        == ("linear_attention", "full_attention") * 2
    )
    assert parse(changed(full_attention_interval=ABSENT)) == parse(changed())


def test_older_rope_fields() -> None:
    old = changed(
        rope_parameters=ABSENT,
        rope_theta=1e4,
        partial_rotary_factor=0.25,
        rope_scaling={"type": "default", "mrope_section": [3, 3, 2]},
    )
    assert parse(old) == parse(changed())
    assert parse(changed(rope_theta=5.0)).rope_theta == 1e4, "rope_parameters come first"
    assert parse(changed(rope_scaling={"rope_theta": 5.0})).rope_theta == 1e4, "rope_parameters come first"
    assert parse(changed(rope_scaling=None)) == parse(changed())


def test_the_released_section_may_be_left_out() -> None:
    released = changed(rope_parameters=RELEASED_ROPE, head_dim=256)
    assert parse(released).mrope_section == (11, 11, 10)
    with pytest.raises(ConfigError, match="mrope_section is None; it must be three integers that sum to 8"):
        parse(changed(rope={"mrope_section": ABSENT}))


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, 1),
        ({"mtp_num_hidden_layers": ABSENT}, 0),
        ({"mtp_num_hidden_layers": 0}, 0),
        ({"mtp_num_hidden_layers": ABSENT, "model_type": "qwen3_5_mtp"}, 1),
    ],
)
def test_mtp_layers(fields: dict[str, Any], layers: int) -> None:
    assert parse(changed(**fields)).mtp_layers == layers


def test_experts_alone_make_a_moe() -> None:
    assert parse(changed("moe", model_type=ABSENT)).experts == 8
    assert parse(changed("moe", model_type="qwen3_5_mtp")).experts == 8


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_model_types(model_type: str) -> None:
    assert parse(changed("moe", model_type=model_type)).hidden == 48


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("model_type is 'qwen4_exp'; supported: 'qwen3_5'", {"model_type": "qwen4_exp"}),
    ("hidden_act is 'gelu'; supported: 'silu'", {"hidden_act": "gelu"}),
    ("attention_bias is True; supported: False", {"attention_bias": True}),
    ("attn_output_gate is False; supported: True", {"attn_output_gate": False}),
    ("output_gate_type is 'sigmoid'; supported: 'swish', 'silu'", {"output_gate_type": "sigmoid"}),
    ("norm_topk_prob is False; supported: True", {"norm_topk_prob": False}),
    ("mamba_ssm_dtype is 'bfloat16'; supported: 'float32'", {"mamba_ssm_dtype": "bfloat16"}),
    ("mtp_use_dedicated_embeddings is True; supported: False", {"mtp_use_dedicated_embeddings": True}),
    ("quantization_config is set", {"quantization_config": {"quant_method": "fp8"}}),
    ("rope_type is 'yarn' in rope_parameters", {"rope": {"rope_type": "yarn"}}),
    ("rope_type is 'yarn' in rope_scaling", {"rope_scaling": {"type": "yarn", "factor": 4}}),
    ("rope_theta is missing", {"rope": {"rope_theta": ABSENT}}),
    ("rope_theta is '1e7'; it must be a positive number", {"rope": {"rope_theta": "1e7"}}),
    ("rope_theta is -1; it must be a positive number", {"rope": {"rope_theta": -1}}),
    (r"rope_parameters is \[1\]; it must be an object", {"rope_parameters": [1]}),
    ("mrope_interleaved is False; supported: True", {"rope": {"mrope_interleaved": False}}),
    (r"mrope_section is \[3, 3, 3\]; .* sum to 8", {"rope": {"mrope_section": [3, 3, 3]}}),
    (r"mrope_section is \[4, 4\]; it must be three", {"rope": {"mrope_section": [4, 4]}}),
    (r"mrope_section is \[True, 4, 3\]; it must be three", {"rope": {"mrope_section": [True, 4, 3]}}),
    (r"mrope_section is \[10, -1, -1\]; it must be three", {"rope": {"mrope_section": [10, -1, -1]}}),
    ("partial_rotary_factor is 0.28; of head_dim 64", {"rope": {"partial_rotary_factor": 0.28}}),
    ("partial_rotary_factor is 2.0; of head_dim 64", {"rope": {"partial_rotary_factor": 2}}),
    ("partial_rotary_factor is 'x'; it must be a positive number", {"rope": {"partial_rotary_factor": "x"}}),
    (
        "layer_types holds 'sliding_attention'",
        {"layer_types": ["sliding_attention"] + ["full_attention"] * 7},
    ),
    ("layer_types has 1 entries; num_hidden_layers is 8", {"layer_types": ["full_attention"]}),
    ("layer_types is 'full'; it must be a list", {"layer_types": "full"}),
    ("the last layer, 6, is 'linear_attention'", {"num_hidden_layers": 7}),
    ("hidden_size is '48'; it must be an integer", {"hidden_size": "48"}),
    ("hidden_size is 48.0; it must be an integer", {"hidden_size": 48.0}),
    ("hidden_size is missing", {"hidden_size": ABSENT}),
    ("head_dim is missing", {"head_dim": ABSENT}),
    ("vocab_size is -1; it must be an integer of at least 1", {"vocab_size": -1}),
    ("num_hidden_layers is True; it must be an integer", {"num_hidden_layers": True}),
    ("linear_conv_kernel_dim is 1; it must be an integer of at least 2", {"linear_conv_kernel_dim": 1}),
    ("rms_norm_eps is missing", {"rms_norm_eps": ABSENT}),
    ("rms_norm_eps is 0; it must be a positive number", {"rms_norm_eps": 0}),
    ("rms_norm_eps is nan; it must be a positive number", {"rms_norm_eps": float("nan")}),
    ("intermediate_size is missing", {"intermediate_size": ABSENT}),
    ("tie_word_embeddings is 'yes'; it must be true or false", {"tie_word_embeddings": "yes"}),
    ("num_attention_heads is 6; it must be a multiple of num_key_value_heads, 4", {"num_key_value_heads": 4}),
    ("linear_num_value_heads is 6; .* linear_num_key_heads, 4", {"linear_num_key_heads": 4}),
    ("mtp_num_hidden_layers is 2; at most 1", {"mtp_num_hidden_layers": 2}),
    ("mtp_num_hidden_layers is '1'; it must be an integer", {"mtp_num_hidden_layers": "1"}),
    ("mtp_num_hidden_layers is -1; it must be an integer", {"mtp_num_hidden_layers": -1}),
    ("text_config is None; it must be an object", {"text_config": None}),
    ("model_type is 'qwen3_5_moe_text', and num_experts is missing", {"base": "moe", "num_experts": ABSENT}),
    ("num_experts_per_tok is 9; there are 8 experts", {"base": "moe", "num_experts_per_tok": 9}),
    ("moe_intermediate_size is missing", {"base": "moe", "moe_intermediate_size": ABSENT}),
    ("shared_expert_intermediate_size is 0", {"base": "moe", "shared_expert_intermediate_size": 0}),
]


@pytest.mark.parametrize(("message", "fields"), REFUSED, ids=[message[:40] for message, _ in REFUSED])
def test_a_refusal_names_field_and_value(message: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(changed(**fields))


def test_what_is_refused_is_fine_without_the_change() -> None:
    assert parse(changed()).layers == parse(changed("moe")).layers == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ('{"a": ', "not valid JSON"), ("[1]", "holds list, not an object")],
)
def test_a_bad_file_is_named(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path)
    assert str(path) in str(caught.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(changed()))
    assert read(tmp_path) == parse(changed())
