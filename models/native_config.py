"""The configuration of the native hybrid architecture (`model_type: "hybrid_native"`), read from `config.json`.

Knows keys, values and the shapes that follow from them; knows neither torch nor weights nor how a layer computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from .blueprint.config_reader import ConfigReader, shown

MODEL_TYPE = "hybrid_native"
ARCHITECTURE = "HybridNativeForConditionalGeneration"

Mixer = Literal["mamba2", "full", "sliding"]
DTYPES = ("float32", "bfloat16", "float16")
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
        config = _object(data, where)
        mixer = config.one_of("mixer", MIXERS)
        return cls(mixer=cast(Mixer, mixer), mlp=config.flag("mlp"))

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
        read = _object(data, "vision_config")
        config = cls(
            image_size=read.integer("image_size"),
            patch_size=read.integer("patch_size"),
            merge_size=read.integer("merge_size"),
            hidden_size=read.integer("hidden_size"),
            num_hidden_layers=read.count("num_hidden_layers"),
            num_attention_heads=read.integer("num_attention_heads"),
            intermediate_size=read.integer("intermediate_size"),
            layer_norm_eps=read.positive("layer_norm_eps"),
        )
        read.multiple("image_size", config.image_size, "patch_size * merge_size", config.cell_size)
        read.multiple("hidden_size", config.hidden_size, "num_attention_heads", config.num_attention_heads)
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
        read = _object(data, "config")
        read.one_of("model_type", (MODEL_TYPE,))
        layers = read.entries("layers")
        if not layers:
            raise read.error("layers", layers, "a list with at least one entry")
        for key in ("bos_token_id", "vision_config"):
            _refuse_missing(read, key)
        last_token = read.integer("vocab_size") - 1

        def token_id(key: str) -> int:
            return read.integer(key, at_least=0, at_most=last_token)

        config = cls(
            vocab_size=read.integer("vocab_size"),
            hidden_size=read.integer("hidden_size"),
            rms_norm_eps=read.positive("rms_norm_eps"),
            tie_word_embeddings=read.flag("tie_word_embeddings"),
            max_position_embeddings=read.integer("max_position_embeddings", at_most=MAX_POSITIONS),
            rope_theta=read.positive("rope_theta"),
            num_attention_heads=read.integer("num_attention_heads"),
            num_key_value_heads=read.integer("num_key_value_heads"),
            head_dim=read.integer("head_dim"),
            sliding_window=read.integer("sliding_window"),
            intermediate_size=read.integer("intermediate_size"),
            mamba_num_heads=read.integer("mamba_num_heads"),
            mamba_head_dim=read.integer("mamba_head_dim"),
            mamba_state_size=read.integer("mamba_state_size"),
            mamba_n_groups=read.integer("mamba_n_groups"),
            mamba_conv_kernel=read.integer("mamba_conv_kernel", at_least=2),
            layers=tuple(NativeLayer.from_dict(layer, f"config.layers[{i}]") for i, layer in enumerate(layers)),
            bos_token_id=None if read.is_null("bos_token_id") else token_id("bos_token_id"),
            eos_token_id=token_id("eos_token_id"),
            pad_token_id=token_id("pad_token_id"),
            image_token_id=token_id("image_token_id"),
            torch_dtype=read.one_of("torch_dtype", DTYPES),
            vision_config=NativeVisionConfig.from_dict(read.get("vision_config")) if "vision_config" in read else None,
        )
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        read.multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
        read.multiple("mamba_num_heads", config.mamba_num_heads, "mamba_n_groups", config.mamba_n_groups)
        read.multiple("head_dim", config.head_dim, "2 (rotary halves)", 2)
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


def _object(data: object, where: str) -> ConfigReader:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object, got {shown(data)}")
    return ConfigReader(data, where)


def _refuse_missing(config: ConfigReader, key: str) -> None:
    """Raise for a key that may be null and must be there."""
    if key not in config and not config.is_null(key):
        config.require(key)
