"""What the configurations of most families have in common: tokens, dtype, positions, activation, embeddings; and the
frame of a decoder.

Spelled as transformers spells it. Raises ValueError naming the key and the value.
"""

from collections.abc import Iterable, Mapping
from math import inf
from struct import pack, unpack
from typing import Any, Literal

from ...blueprint.config_reader import ConfigReader, as_float, shown
from ...blueprint.decoder import Decoder, Layer, Part, Residual
from ...blueprint.model import Model, Prefixes
from ...blueprint.parts import ACTIVATIONS, Activation, Norm

DTYPES = ("float32", "bfloat16", "float16")
RECURRENT_POSITIONS = 131072  # the limit where a model has no positions that could end: recurrent layers and windows
HEAD = "lm_head.weight"
# Tensors that checkpoints may hold and nothing here reads.
OLD_BUFFERS = r".*rotary_emb\.inv_freq"  # saved by transformers of long ago; computed here
MTP = r"mtp\..*"  # layers that predict the token after the next one


def causal_lm(
    config: ConfigReader,
    layers: Iterable[Layer],
    norm: Norm,
    *,
    positions: int,
    tied: bool = False,
    tied_key: str = "tie_word_embeddings",
    embedding: str = "model.embed_tokens.weight",
    ignored: tuple[str, ...] = (),
    prefixes: Prefixes = (),
    **details: Any,
) -> Model:
    """The whole model around its layers. norm: the last one; ignored, prefixes: as in `Model`.

    positions, tied: what absent keys mean; details: fields of `Decoder` that differ.
    """
    tied = config.flag(tied_key, tied)
    return Model(
        decoder=Decoder(
            vocab_size=config.integer("vocab_size"),
            hidden_size=config.integer("hidden_size"),
            max_positions=config.integer("max_position_embeddings", positions),
            layers=tuple(layers),
            embedding=embedding,
            norm=norm,
            head=None if tied else HEAD,
            tied_head=HEAD if tied else None,
            **details,
        ),
        dtype=dtype(config),
        eos_token_ids=eos_token_ids(config),
        ignored=(OLD_BUFFERS, *ignored),
        prefixes=prefixes,
    )


def pre_norm_layer(*branches: tuple[Norm, Part], multiplier: float = 1.0) -> Layer:
    """One residual branch after the other: x + multiplier * part(norm(x))."""
    return Layer(tuple(Residual(norm, (part,), multiplier=multiplier) for norm, part in branches))


def refuse_quantised(config: ConfigReader) -> None:
    """Raise for weights that are not plain floating point."""
    if "quantization_config" in config:
        quantised = config.get("quantization_config")
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        raise ValueError(f"config.quantization_config has quant_method {shown(method)}, which is not supported")


def dtype(config: ConfigReader) -> str:
    """`dtype`, spelled `torch_dtype` before transformers 5; float32 where neither is there."""
    key = "dtype" if "dtype" in config else "torch_dtype"
    return config.one_of(key, DTYPES, default="float32")


def eos_token_ids(config: ConfigReader) -> tuple[int, ...]:
    """The tokens that end a text: none, one or several."""
    value = config.get("eos_token_id", [])
    ids = value if isinstance(value, list) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise config.error("eos_token_id", value, "a token id or a list of them")
    return tuple(ids)


def activation(config: ConfigReader, key: str = "hidden_act", default: str | None = None) -> Activation:
    """The activation of the MLPs."""
    return ACTIVATIONS[config.one_of(key, tuple(ACTIVATIONS), default)]


def head_dim(config: ConfigReader) -> int:
    """`head_dim`, or hidden_size / num_attention_heads where it is absent."""
    if "head_dim" in config:
        return config.integer("head_dim")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    return config.multiple("hidden_size", hidden, "num_attention_heads", heads) // heads


def silu(config: ConfigReader) -> Literal["silu"]:
    """`hidden_act` where it can be nothing else: other places that are always SiLU go by it too."""
    config.one_of("hidden_act", ("silu", "swish"), default="silu")
    return "silu"


def step_size_limit(config: ConfigReader, key: str) -> tuple[float, float]:
    """The range that step sizes of Mamba-2 are clamped to, [0, infinity] where the key is absent.

    Infinity is written `Infinity` by old versions of transformers, and {"__float__": "Infinity"} by new ones.
    """
    entries = config.entries(key, 2, default=[0.0, inf])
    low, high = (inf if value == {"__float__": "Infinity"} else as_float(value) for value in entries)
    if low is None or high is None or not 0 <= low <= high:
        raise config.error(key, config.get(key), "two numbers, from 0 on and in order")
    return low, high


def bfloat16(value: float) -> float:
    """The nearest bfloat16, ties to even: some constants are kept so, whatever the dtype of the weights."""
    (bits,) = unpack("<I", pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    (rounded,) = unpack("<f", pack("<I", bits & 0xFFFF0000))
    return float(rounded)
