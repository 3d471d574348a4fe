"""SmolLM3: Llama in which some layers have no rope. Source: transformers' `modeling_smollm3.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from .shared import common
from .shared.attention_only import (
    attention,
    causal_lm,
    every_nth_full,
    mlp,
    pre_norm_layer,
    switched_windows,
    whole_rope,
)


def model(config: ConfigReader) -> Model:
    """The blueprint of a smollm3 checkpoint."""
    head_dim = common.head_dim(config)
    rope = whole_rope(config, head_dim, theta=2000000.0)
    rotates = _rotating_layers(config)
    window = switched_windows(config, lambda index: not rotates[index])
    bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)

    def layer(index: int, at: str) -> Layer:
        mixer = attention(
            config,
            at,
            head_dim,
            rope if rotates[index] else None,
            sliding_window=window[index],
            qkv_bias=bias,
            out_bias=bias,
        )
        return pre_norm_layer(config, at, mixer, mlp(config, at, bias=mlp_bias))

    return causal_lm(config, layer, positions=32768, tied=True)


def _rotating_layers(config: ConfigReader) -> list[bool]:
    """Which layers have a rope: 1 in `no_rope_layers`, or all but every `no_rope_layer_interval`-th."""
    count = config.count("num_hidden_layers")
    if "no_rope_layers" not in config:
        rule = every_nth_full(config.integer("no_rope_layer_interval", 4))
        return [rule(index) for index in range(count)]
    flags = config.entries("no_rope_layers")
    if len(flags) < count or any(flag not in (0, 1) for flag in flags):
        raise config.error("no_rope_layers", flags, f"at least {count} zeros and ones")
    return [bool(flag) for flag in flags]
