"""Rope: which rotary position embedding an attention layer uses, and its frequencies. Numpy, no torch.

Sources: RoPE (Su et al. 2021); YaRN (Peng et al. 2023); Llama 3.1's and LongRoPE's scaling as in transformers'
`modeling_rope_utils.py`, whose names and keys these are.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf, isfinite, log, pi

import numpy as np
from numpy.typing import NDArray

from .config_reader import ConfigReader

MAX_HEAD_DIM = 65536
NOT_FINITE = "numbers that give finite frequencies"
KINDS = ("default", "linear", "llama3", "yarn", "proportional", "mrope")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates the first `rotary_dim` elements of each head; equal ropes share one table.

    inverse_frequencies [rotary_dim / 2]; cosines and sines are multiplied by `attention_factor`. Pairs are (i, i +
    rotary_dim / 2), or neighbours (2 i, 2 i + 1) where `interleaved`. axes[i]: which of a token's three positions (0
    time, 1 height, 2 width) turns pair i (mrope); None: tokens have one position, also in images.
    """

    rotary_dim: int
    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    interleaved: bool = False
    axes: tuple[int, ...] | None = None


def read_rope(
    config: ConfigReader,
    head_dim: int,
    *,
    theta: float | None = None,
    rotary_factor: float = 1.0,
    layer_type: str | None = None,
    interleaved: bool = False,
    kinds: Collection[str] = KINDS,
) -> Rope:
    """The rope that a configuration describes, old spelling (`rope_theta`, `rope_scaling`) or new (`rope_parameters`).

    theta, rotary_factor: where the configuration says nothing; theta None: it has to. layer_type: where
    `rope_parameters` has one entry per kind of layer, which one. kinds: those that the
    family knows. Raises ValueError for any other.
    """
    if head_dim > MAX_HEAD_DIM:
        raise config.error("head_dim", head_dim, f"at most {MAX_HEAD_DIM}")
    key, params = _parameters(config, layer_type)
    kind = params.get("rope_type", params.get("type", "default"))
    if kind not in kinds:
        raise config.error(f"{key}.rope_type", kind, f"one of {', '.join(kinds)}")
    if kind == "mrope":
        kind = "default"  # see `mrope_axes`
    reader = ConfigReader(params, f"{config.where}.{key}")
    base = reader.positive("rope_theta") if "rope_theta" in reader else config.positive("rope_theta", theta)
    partial = reader if "partial_rotary_factor" in reader else config
    share = partial.positive("partial_rotary_factor", rotary_factor)
    if share > 1:
        raise partial.error("partial_rotary_factor", share, "at most 1")
    if kind == "proportional":
        slower = reader.positive("factor", 1.0)
        with np.errstate(all="ignore"):
            turning = _proportional(base, head_dim, share) / np.float32(slower)
        return Rope(head_dim, _finite(turning, 1.0, config, key), interleaved=interleaved)
    rotary_dim = int(head_dim * share)
    if rotary_dim < 2 or rotary_dim > head_dim or rotary_dim % 2:
        raise config.error(
            "partial_rotary_factor", rotary_dim / head_dim, f"a share of head_dim {head_dim} that is even"
        )
    try:
        with np.errstate(all="ignore"):
            frequencies, factor = _scaled(kind, reader, config, base, rotary_dim)
    except (ZeroDivisionError, OverflowError):
        raise config.error(key, config.get(key), NOT_FINITE) from None
    return Rope(rotary_dim, _finite(frequencies, factor, config, key), factor, interleaved)


def mrope_axes(config: ConfigReader, pairs: int, sections: tuple[int, int, int], *, in_turns: bool) -> tuple[int, ...]:
    """`Rope.axes` for so many pairs. `mrope_section` says how many of them go to time, height and width; sections:
    where it is absent.

    in_turns: time, height and width take one pair after the other, until height and width have theirs; the others are
    time's (Qwen3-VL). Else first all of time, then of height, then of width (Qwen2-VL).
    """
    key, params = _parameters(config, None)
    reader = ConfigReader(params, f"{config.where}.{key}")
    reader.refuse("mrope_interleaved", (in_turns,), "the family has the other order")
    counts = reader.entries("mrope_section", 3, default=list(sections))
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in counts):
        raise reader.error("mrope_section", counts, "three numbers of pairs")
    if not in_turns:
        if sum(counts) != pairs:
            raise reader.error("mrope_section", counts, f"three numbers of pairs, {pairs} together")
        return tuple(axis for axis, count in enumerate(counts) for _ in range(count))
    axes = [0] * pairs
    for axis in (1, 2):
        for pair in range(axis, min(pairs, 3 * counts[axis]), 3):
            axes[pair] = axis
    return tuple(axes)


def _finite(frequencies: NDArray[np.float32], factor: float, config: ConfigReader, key: str) -> tuple[float, ...]:
    """The frequencies, for any numbers may stand in a configuration. Raises ValueError for what turns nowhere."""
    if not (np.isfinite(frequencies).all() and isfinite(factor)):
        raise config.error(
            key if key in config else "rope_theta", config.get(key, config.get("rope_theta")), NOT_FINITE
        )
    return tuple(frequencies.tolist())


def _parameters(config: ConfigReader, layer_type: str | None) -> tuple[str, Mapping[str, object]]:
    """The key that holds the rope, and its entries."""
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    params = config.get(key, {})
    if isinstance(params, Mapping) and layer_type is not None and layer_type in params:
        key, params = f"{key}.{layer_type}", params[layer_type] or {}
    if not isinstance(params, Mapping):
        raise config.error(key, params, "an object")
    nested = [name for name, value in params.items() if isinstance(value, Mapping)]
    if nested:
        raise ValueError(f"{config.where}.{key} has an entry {nested[0]!r}, where one rope for all layers was expected")
    return key, params


def _scaled(
    kind: object, params: ConfigReader, config: ConfigReader, base: float, dim: int
) -> tuple[NDArray[np.float32], float]:
    """(inverse frequencies [dim / 2], attention factor), in float32 as the checkpoints were trained with."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    plain = (1.0 / np.power(np.float32(base), exponents)).astype(np.float32)
    if kind == "default":
        return plain, 1.0
    factor = params.positive("factor")
    if kind == "linear":
        return plain / np.float32(factor), 1.0
    original = params if "original_max_position_embeddings" in params else config
    if kind == "llama3":
        low, high = params.positive("low_freq_factor"), params.positive("high_freq_factor")
        return _llama3(plain, factor, low, high, original.integer("original_max_position_embeddings")), 1.0
    context = (
        original.integer("original_max_position_embeddings")
        if "original_max_position_embeddings" in original
        else config.integer("max_position_embeddings")
    )
    return _yarn(plain, params, base, dim, factor, context)


def _proportional(base: float, head_dim: int, share: float) -> NDArray[np.float32]:
    """Gemma 4: [head_dim / 2] of which a share turns, as fast as if all did, and the others stand still."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies: NDArray[np.float32] = (1.0 / np.power(np.float32(base), exponents)).astype(np.float32)
    frequencies[int(share * head_dim // 2) :] = 0
    return frequencies


def _llama3(plain: NDArray[np.float32], factor: float, low: float, high: float, context: int) -> NDArray[np.float32]:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    wavelength = 2 * pi / plain
    blend = (context / wavelength - low) / (high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    stretched = np.where(wavelength > context / low, plain / factor, plain)
    between = (wavelength >= context / high) & (wavelength <= context / low)
    scaled: NDArray[np.float32] = np.where(between, blended, stretched).astype(np.float32)
    return scaled


def _yarn(
    plain: NDArray[np.float32], params: ConfigReader, base: float, dim: int, factor: float, context: int
) -> tuple[NDArray[np.float32], float]:
    """Frequencies that turn less than beta_slow times within the original context are interpolated."""

    def magnitude(scale: float, weight: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * log(scale) + 1.0

    if "attention_factor" in params:
        attention_factor = params.positive("attention_factor")
    elif "mscale" in params and "mscale_all_dim" in params:
        attention_factor = magnitude(factor, params.number("mscale")) / magnitude(
            factor, params.number("mscale_all_dim")
        )
    else:
        attention_factor = magnitude(factor)

    def border(rotations: float) -> float:  # the dimension that turns so often within the context
        turns = context / (rotations * 2 * pi)
        return dim * log(turns) / (2 * log(base)) if turns > 0 else -inf

    low, high = border(params.positive("beta_fast", 32.0)), border(params.positive("beta_slow", 1.0))
    if params.flag("truncate", True):
        low, high = float(np.floor(low)), float(np.ceil(high))
    low, high = max(low, 0.0), min(high, dim - 1.0)
    ramp = (np.arange(dim // 2, dtype=np.float32) - low) / (high - low if high != low else 0.001)
    kept = 1 - np.clip(ramp, 0, 1).astype(np.float32)
    scaled = plain / np.float32(factor) * (1 - kept) + plain * kept
    return scaled.astype(np.float32), attention_factor
