"""What a plan is made from: the command line, the numbers of a checkpoint, the device. Plain values, no torch."""

from dataclasses import dataclass
from pathlib import Path

from ft.fast import demo


@dataclass(frozen=True)
class Flags:
    """The command line, one field a flag. None leaves the choice to the plan; no model means the demo."""

    model: Path | None = None
    speculative_algorithm: str = "off"
    speculative_draft_model_path: Path | None = None
    speculative_num_steps: int | None = None
    speculative_token_map: Path | None = None
    cache_type: str | None = None
    attention_backend: str | None = None
    max_running_requests: int = 16
    max_prefill_length: int = 2048
    page_size: int = 16
    num_tokens: int | None = None
    memory_ratio: float = 0.9
    dummy_weight: bool = False
    device: str | None = None
    dtype: str | None = None
    context_length: int | None = None
    served_model_name: str | None = None
    api_key: str | None = None
    host: str = "127.0.0.1"
    port: int = 1919

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return demo.FOLDER if self.model is None else self.model

    @property
    def name(self) -> str:
        """The name that clients use for the model."""
        if self.served_model_name is not None:
            return self.served_model_name
        return demo.NAME if self.model is None else self.model.resolve().name


@dataclass(frozen=True)
class CheckpointFacts:
    """Numbers of one checkpoint. Letters: V vocabulary, H hidden, nkv heads of D, Hk/Hv heads of Dk/Dv, C, K.

    widest: elements of the widest row that one layer makes of a hidden row. parameters: those of the target;
    draft_parameters: those of its MTP layer. mtp_layers: what the config announces; has_mtp: whether the
    tensors are there. stored_bytes: size of the weight files.
    """

    family: str
    vocabulary: int
    hidden: int
    context: int
    attention_layers: int
    kv_heads: int
    head_dim: int
    linear_layers: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_dim: int
    linear_value_dim: int
    conv_channels: int
    conv_taps: int
    widest: int
    parameters: int
    draft_parameters: int
    mtp_layers: int
    has_mtp: bool
    stored_bytes: int


@dataclass(frozen=True)
class DeviceFacts:
    """kind: cpu or cuda. name: what torch calls the device, such as cuda:0. free_bytes: memory not in use.

    packages: installed packages that some backend needs.
    """

    kind: str
    name: str
    free_bytes: int
    product: str = ""
    packages: frozenset[str] = frozenset()
