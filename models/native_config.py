"""The configuration of the native hybrid architecture (`model_type: "hybrid_native"`), read from `config.json`.

Knows keys, values and the shapes that follow from them; knows neither torch nor weights nor how a layer computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from .blueprint.config_reader import MAX_COUNT, as_float, shown

MODEL_TYPE = "hybrid_native"
ARCHITECTURE = "HybridNativeForConditionalGeneration"

Mixer = Literal["mamba2", "full", "sliding"]
MAX_SIZE = 2**31 - 1  # of anything that is counted
MAX_POSITIONS = 2**24  # the rotary embedding keeps a table over them
MIXERS: tuple[Mixer, ...] = get_args(Mixer)


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """One decoder layer: a token mixer, followed by a SwiGLU MLP when `mlp` is true."""

    mixer: Mixer
    mlp: bool

    @classmethod
    def from_dict(cls, data: object, where: str) -> NativeLayer:
        """Read `{"mixer": ..., "mlp": ...}`; `where` names the entry in errors, for example `layers[3]`."""
        entry = _mapping(data, where)
        mixer = _get(entry, "mixer", where)
        if mixer not in MIXERS:
            raise ValueError(f"{where}.mixer must be one of {', '.join(MIXERS)}, got {shown(mixer)}")
        return cls(mixer=cast(Mixer, mixer), mlp=_bool(entry, "mlp", where))

    def to_dict(self) -> dict[str, Any]:
        """The entry of `config.json`'s `layers` list that reads back as this layer."""
        return {"mixer": self.mixer, "mlp": self.mlp}


@dataclass(frozen=True, slots=True)
class NativeVisionConfig:
    """The vision tower: a pre-LN ViT over square pictures, then a patch-merging two-layer projector."""

    image_size: int
    patch_size: int
    merge_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    layer_norm_eps: float

    @classmethod
    def from_dict(cls, data: object) -> NativeVisionConfig:
        """Read `vision_config`; raises ValueError naming the key and the value."""
        where = "vision_config"
        entry = _mapping(data, where)
        config = cls(
            image_size=_positive_int(entry, "image_size", where),
            patch_size=_positive_int(entry, "patch_size", where),
            merge_size=_positive_int(entry, "merge_size", where),
            hidden_size=_positive_int(entry, "hidden_size", where),
            num_hidden_layers=_positive_int(entry, "num_hidden_layers", where, MAX_COUNT),
            num_attention_heads=_positive_int(entry, "num_attention_heads", where),
            intermediate_size=_positive_int(entry, "intermediate_size", where),
            layer_norm_eps=_positive_float(entry, "layer_norm_eps", where),
        )
        _require_multiple(where, "image_size", config.image_size, "patch_size * merge_size", config.cell_size)
        _require_multiple(where, "hidden_size", config.hidden_size, "num_attention_heads", config.num_attention_heads)
        return config

    def to_dict(self) -> dict[str, Any]:
        """The `vision_config` of `config.json` that reads back as this configuration."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def cell_size(self) -> int:
        """Side, in pixels, of the square that one image token describes."""
        return self.patch_size * self.merge_size

    @property
    def patches_per_side(self) -> int:
        """Patches along one side of the picture."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        """Patches in one picture, row-major."""
        return self.patches_per_side**2

    @property
    def num_image_tokens(self) -> int:
        """Decoder tokens that one picture becomes."""
        return (self.image_size // self.cell_size) ** 2


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """A hybrid decoder with any order of Mamba-2, full-attention and sliding-window layers, and an optional ViT.

    Field names are the keys of `config.json`. All sizes are counts of elements, `sliding_window` and
    `max_position_embeddings` are tokens. Source of the conventions: Llama (attention, SwiGLU, rotary) and
    Mamba-2 as in transformers' `modeling_mamba2.py` and `modeling_bamba.py`.
    """

    vocab_size: int
    hidden_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    rope_theta: float
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sliding_window: int
    intermediate_size: int
    mamba_num_heads: int
    mamba_head_dim: int
    mamba_state_size: int
    mamba_n_groups: int
    mamba_conv_kernel: int
    layers: tuple[NativeLayer, ...]
    bos_token_id: int | None
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    torch_dtype: str
    vision_config: NativeVisionConfig | None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NativeConfig:
        """Read and validate a whole `config.json`; raises ValueError naming the key and the value.

        Keys that this architecture does not define (`transformers_version` and the like) are ignored.
        """
        where = "config"
        entry = _mapping(data, where)
        model_type = _get(entry, "model_type", where)
        if model_type != MODEL_TYPE:
            raise ValueError(f"config.model_type must be {MODEL_TYPE!r}, got {shown(model_type)}")
        layers = _get(entry, "layers", where)
        if not isinstance(layers, (list, tuple)) or not layers:
            raise ValueError(f"config.layers must be a non-empty list, got {shown(layers)}")
        vision = _get(entry, "vision_config", where)
        dtype = _get(entry, "torch_dtype", where)
        if dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"config.torch_dtype must be float32, bfloat16 or float16, got {shown(dtype)}")
        vocab_size = _positive_int(entry, "vocab_size", where)
        bos = _get(entry, "bos_token_id", where)
        config = cls(
            vocab_size=vocab_size,
            hidden_size=_positive_int(entry, "hidden_size", where),
            rms_norm_eps=_positive_float(entry, "rms_norm_eps", where),
            tie_word_embeddings=_bool(entry, "tie_word_embeddings", where),
            max_position_embeddings=_positive_int(entry, "max_position_embeddings", where, MAX_POSITIONS),
            rope_theta=_positive_float(entry, "rope_theta", where),
            num_attention_heads=_positive_int(entry, "num_attention_heads", where),
            num_key_value_heads=_positive_int(entry, "num_key_value_heads", where),
            head_dim=_positive_int(entry, "head_dim", where),
            sliding_window=_positive_int(entry, "sliding_window", where),
            intermediate_size=_positive_int(entry, "intermediate_size", where),
            mamba_num_heads=_positive_int(entry, "mamba_num_heads", where),
            mamba_head_dim=_positive_int(entry, "mamba_head_dim", where),
            mamba_state_size=_positive_int(entry, "mamba_state_size", where),
            mamba_n_groups=_positive_int(entry, "mamba_n_groups", where),
            mamba_conv_kernel=_positive_int(entry, "mamba_conv_kernel", where),
            layers=tuple(NativeLayer.from_dict(layer, f"config.layers[{i}]") for i, layer in enumerate(layers)),
            bos_token_id=None if bos is None else _token_id(entry, "bos_token_id", vocab_size),
            eos_token_id=_token_id(entry, "eos_token_id", vocab_size),
            pad_token_id=_token_id(entry, "pad_token_id", vocab_size),
            image_token_id=_token_id(entry, "image_token_id", vocab_size),
            torch_dtype=dtype,
            vision_config=None if vision is None else NativeVisionConfig.from_dict(vision),
        )
        _require_multiple(
            where, "num_attention_heads", config.num_attention_heads, "num_key_value_heads", config.num_key_value_heads
        )
        _require_multiple(where, "mamba_num_heads", config.mamba_num_heads, "mamba_n_groups", config.mamba_n_groups)
        _require_multiple(where, "head_dim", config.head_dim, "2 (rotary halves)", 2)
        if config.mamba_conv_kernel < 2:
            raise ValueError(f"config.mamba_conv_kernel must be at least 2, got {config.mamba_conv_kernel!r}")
        return config

    def to_dict(self) -> dict[str, Any]:
        """The `config.json` dictionary that reads back as this configuration."""
        data: dict[str, Any] = {"model_type": MODEL_TYPE, "architectures": [ARCHITECTURE]}
        data.update({name: getattr(self, name) for name in self.__dataclass_fields__})
        data["layers"] = [layer.to_dict() for layer in self.layers]
        data["vision_config"] = None if self.vision_config is None else self.vision_config.to_dict()
        return data

    @property
    def mamba_inner_size(self) -> int:
        """`d_inner`: channels of x, z and y in a Mamba-2 layer."""
        return self.mamba_num_heads * self.mamba_head_dim

    @property
    def mamba_conv_dim(self) -> int:
        """Channels of the causal convolution: x, B and C side by side."""
        return self.mamba_inner_size + 2 * self.mamba_n_groups * self.mamba_state_size


def _mapping(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object, got {shown(data)}")
    return data


def _get(entry: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in entry:
        raise ValueError(f"{where}.{key} is missing")
    return entry[key]


def _positive_int(entry: Mapping[str, Any], key: str, where: str, at_most: int = MAX_SIZE) -> int:
    value = _get(entry, key, where)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{where}.{key} must be a positive integer, got {shown(value)}")
    if value > at_most:
        raise ValueError(f"{where}.{key} must be at most {at_most}, got {shown(value)}")
    return value


def _positive_float(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = _get(entry, key, where)
    number = as_float(value)
    if number is None or not 0.0 < number < float("inf"):
        raise ValueError(f"{where}.{key} must be a positive number, got {shown(value)}")
    return number


def _bool(entry: Mapping[str, Any], key: str, where: str) -> bool:
    value = _get(entry, key, where)
    if not isinstance(value, bool):
        raise ValueError(f"{where}.{key} must be true or false, got {shown(value)}")
    return value


def _token_id(entry: Mapping[str, Any], key: str, vocab_size: int) -> int:
    value = _get(entry, key, "config")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
        raise ValueError(f"config.{key} must be a token id below vocab_size {vocab_size}, got {shown(value)}")
    return value


def _require_multiple(where: str, key: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        raise ValueError(f"{where}.{key} must be a multiple of {divisor_name} ({divisor}), got {shown(value)}")
