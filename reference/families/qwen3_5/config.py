"""Configuration of the Qwen3.5 family (dense and MoE text trunk, MTP head). Source: specs qwen3_5 1."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """One text model. Letters: L layers, H hidden, nq/nkv heads, D head size, R rotary dims, E experts."""

    vocabulary: int
    hidden: int
    layer_types: tuple[str, ...]
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_dims: int
    rope_theta: float
    mrope_section: tuple[int, int, int]
    rms_eps: float
    context: int
    tied: bool
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    conv_taps: int
    intermediate: int
    experts: int
    experts_per_token: int
    expert_intermediate: int
    shared_intermediate: int
    mtp_layers: int

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @property
    def conv_channels(self) -> int:
        """C = 2*Hk*Dk + Hv*Dv."""
        return (
            2 * self.linear_key_heads * self.linear_key_dim + self.linear_value_heads * self.linear_value_dim
        )

    def is_full_attention(self, layer: int) -> bool:
        return self.layer_types[layer] == "full_attention"
