"""What families with attention in every layer share: parts, layers and tensor names as in Llama. No family itself.

A family states what it does differently. Raises ValueError naming the key and the value.
"""

from collections.abc import Callable
from typing import Any

from ...blueprint.config_reader import ConfigReader
from ...blueprint.decoder import Layer, Part
from ...blueprint.model import Model
from ...blueprint.parts import MLP, Attention, Norm
from ...blueprint.rope import Rope, read_rope
from . import common

FULL, SLIDING = "full_attention", "sliding_attention"


def attention(config: ConfigReader, at: str, head_dim: int, rope: Rope | None, **details: Any) -> Attention:
    """The attention of the layer `at`; details: fields of `Attention` that differ from plain ones."""
    heads = config.integer("num_attention_heads")
    return Attention(
        name=f"{at}.self_attn",
        hidden_size=config.integer("hidden_size"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=rope,
        **details,
    )


def mlp(config: ConfigReader, at: str, **details: Any) -> MLP:
    """The gated MLP of the layer `at`; details: fields of `MLP` that differ."""
    details.setdefault("activation", common.activation(config, default="silu"))
    return MLP(f"{at}.mlp", config.integer("hidden_size"), config.integer("intermediate_size"), **details)


def rms_norm(config: ConfigReader, name: str, eps: float = 1e-6) -> Norm:
    """A norm over the hidden size; eps: where the configuration says nothing."""
    return Norm(name, config.integer("hidden_size"), config.positive("rms_norm_eps", eps))


def pre_norm_layer(config: ConfigReader, at: str, mixer: Part, mlp: Part, eps: float = 1e-6, scale: float = 1) -> Layer:
    """x + scale * mixer(norm(x)), then the same with the MLP."""
    norms = (rms_norm(config, f"{at}.{name}", eps) for name in ("input_layernorm", "post_attention_layernorm"))
    return common.pre_norm_layer(*zip(norms, (mixer, mlp)), multiplier=scale)


def causal_lm(
    config: ConfigReader,
    layer: Callable[[int, str], Layer],
    *,
    positions: int,
    norm: Norm | None = None,
    **details: Any,
) -> Model:
    """As `common.causal_lm`. layer(index, name prefix); norm: the last one, where it is no plain RMSNorm."""
    layers = (layer(i, f"model.layers.{i}") for i in range(config.count("num_hidden_layers")))
    last = rms_norm(config, "model.norm") if norm is None else norm
    return common.causal_lm(config, layers, last, positions=positions, **details)


def whole_rope(config: ConfigReader, head_dim: int, theta: float = 10000.0, interleaved: bool = False) -> Rope:
    """The rope of all layers, over whole heads: these families know no partial one."""
    rope = read_rope(config, head_dim, theta=theta, interleaved=interleaved)
    if rope.rotary_dim != head_dim:
        raise config.error("partial_rotary_factor", rope.rotary_dim / head_dim, "1")
    return rope


def rope_of_kind(config: ConfigReader, head_dim: int, kind: str, theta: float) -> Rope:
    """The rope of one kind of layer: an entry of `rope_parameters`; in the old spelling, which has one `rope_scaling`
    for full attention only, unscaled for sliding windows. theta: where the entry has none."""
    if "rope_parameters" in config:
        entry = config.reader("rope_parameters").reader(kind)
    elif kind == FULL and "rope_scaling" in config:
        entry = config.reader("rope_scaling")
    else:
        entry = ConfigReader({})
    parameters = {"rope_theta": theta} | {key: entry.get(key) for key in entry if key in entry}
    positions = config.get("max_position_embeddings")
    return whole_rope(ConfigReader({"rope_parameters": parameters, "max_position_embeddings": positions}), head_dim)


def windows(config: ConfigReader, is_sliding: Callable[[int], bool], default: int = 4096) -> tuple[int | None, ...]:
    """The sliding window of every layer, None for full attention: by `layer_types`; where absent, by the family's rule.

    default: the window where the key is absent; null means that there is none.
    """
    count = config.count("num_hidden_layers")
    if "layer_types" in config:
        kinds = config.kinds("layer_types", {FULL: FULL, SLIDING: SLIDING}, count)
        sliding = [kind == SLIDING for kind in kinds]
    else:
        sliding = [is_sliding(index) for index in range(count)]
    if not any(sliding):
        return (None,) * count
    if config.is_null("sliding_window"):
        raise config.error("sliding_window", None, "an integer: layers attend to a sliding window")
    window = config.integer("sliding_window", default)
    return tuple(window if slides else None for slides in sliding)


def switched_windows(config: ConfigReader, is_sliding: Callable[[int], bool]) -> tuple[int | None, ...]:
    """As `windows`, where `use_sliding_window` decides: off or absent, a `sliding_window` means nothing."""
    on = config.flag("use_sliding_window", False)
    found = windows(config, lambda index: on and not config.is_null("sliding_window") and is_sliding(index))
    if not on and any(found):
        raise config.error("use_sliding_window", False, f"true: layer_types has {SLIDING}")
    return found


def every_nth_full(period: int) -> Callable[[int], bool]:
    """The rule of `windows` where every `period`-th layer has full attention."""
    return lambda index: (index + 1) % period != 0
