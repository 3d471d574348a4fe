"""Specs: what one decoder layer keeps for one request, as frozen arithmetic.

A model family answers `layer_specs(config)` from its `config.json` alone; pools are sized from the answer and the
planner reads it. This file knows bytes and shapes, not tensors.
"""

from dataclasses import dataclass
from math import prod

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}

LORA_RANK_UNIT = 8  # columns per rank unit: a rank-8 adapter costs an eighth of a rank-64 one


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype`, spelled as torch spells it. Raises ValueError for a dtype not listed."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPE_BYTES)}") from None


@dataclass(frozen=True, slots=True)
class FullAttentionSpec:
    """Keys and values of every token so far: two [num_kv_heads, head_size] rows per token."""

    num_kv_heads: int
    head_size: int
    dtype: str = "float32"

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.head_size * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class SlidingWindowSpec:
    """Keys and values of the last `sliding_window` tokens: token t sees t - sliding_window + 1 .. t."""

    num_kv_heads: int
    head_size: int
    sliding_window: int
    dtype: str = "float32"

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.head_size * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class MambaSpec:
    """One recurrent state: a convolution tail and an SSM state; also serves gated delta net and short convolution.

    conv_shape: (channels, kernel - 1). ssm_shape: e.g. (num_heads, head_dim, state_size), or () where there is none.
    """

    conv_shape: tuple[int, ...]
    ssm_shape: tuple[int, ...]
    conv_dtype: str = "float32"
    ssm_dtype: str = "float32"

    @property
    def bytes_per_slot(self) -> int:
        conv = prod(self.conv_shape) * dtype_bytes(self.conv_dtype) if self.conv_shape else 0
        ssm = prod(self.ssm_shape) * dtype_bytes(self.ssm_dtype) if self.ssm_shape else 0
        return conv + ssm


LayerSpec = FullAttentionSpec | SlidingWindowSpec | MambaSpec


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Image embeddings kept until the decoder has read them: `hidden_size` elements per embedding token, several times
    the decoder's where they come in levels. min_tokens_per_image: None: all images have as many.
    max_tokens_per_picture: where a picture becomes several images, tiles of it; None: one."""

    hidden_size: int
    max_tokens_per_image: int
    dtype: str = "float32"
    min_tokens_per_image: int | None = None
    max_tokens_per_picture: int | None = None

    @property
    def bytes_per_token(self) -> int:
        return self.hidden_size * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a whole model keeps. `layers[i]` holds the specs of decoder layer i: none, one, or several (falcon_h1)."""

    layers: tuple[tuple[LayerSpec, ...], ...]
    encoder: EncoderSpec | None = None

    def __post_init__(self) -> None:
        for index, specs in enumerate(self.layers):
            for spec in specs:
                if isinstance(spec, SlidingWindowSpec) and spec.sliding_window < 1:
                    raise ValueError(f"layer {index}: sliding_window {spec.sliding_window} is less than 1")

    @property
    def full_bytes_per_token(self) -> int:
        return sum(s.bytes_per_token for layer in self.layers for s in layer if isinstance(s, FullAttentionSpec))

    @property
    def window_bytes_per_token(self) -> int:
        return sum(s.bytes_per_token for layer in self.layers for s in layer if isinstance(s, SlidingWindowSpec))

    @property
    def state_bytes_per_slot(self) -> int:
        return sum(s.bytes_per_slot for layer in self.layers for s in layer if isinstance(s, MambaSpec))

    @property
    def sliding_window(self) -> int:
        """The widest window of any layer, tokens; 0 when no layer slides. One pool serves all widths."""
        widths = [s.sliding_window for layer in self.layers for s in layer if isinstance(s, SlidingWindowSpec)]
        return max(widths, default=0)
