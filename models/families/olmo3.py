"""Olmo 3: three sliding layers to a full one, norms after each branch and over all queries and keys of a token.
Source: transformers' `modeling_olmo3.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer, Residual
from ..blueprint.model import Model
from ..blueprint.parts import Norm
from .shared import common
from .shared.attention_only import (
    FULL,
    SLIDING,
    attention,
    causal_lm,
    every_nth_full,
    mlp,
    rms_norm,
    rope_of_kind,
    windows,
)

EPS = 1e-5
THETA = 500000.0


def model(config: ConfigReader) -> Model:
    """The blueprint of an olmo3 checkpoint."""
    if "rope_parameters" not in config:
        config.refuse("rope_theta", (THETA,), "versions of transformers disagree on what it means for sliding layers")
    eps = config.positive("rms_norm_eps", EPS)
    head_dim = common.head_dim(config)
    full, sliding = (rope_of_kind(config, head_dim, kind, THETA) for kind in (FULL, SLIDING))
    bias = config.flag("attention_bias", False)
    window = windows(config, every_nth_full(4))
    queries = config.integer("num_attention_heads") * head_dim
    keys = config.integer("num_key_value_heads", config.integer("num_attention_heads")) * head_dim

    def layer(index: int, at: str) -> Layer:
        mixer = attention(
            config,
            at,
            head_dim,
            full if window[index] is None else sliding,
            sliding_window=window[index],
            qkv_bias=bias,
            out_bias=bias,
            q_norm=Norm(f"{at}.self_attn.q_norm", queries, eps),
            k_norm=Norm(f"{at}.self_attn.k_norm", keys, eps),
        )
        parts = ((mixer, "post_attention_layernorm"), (mlp(config, at), "post_feedforward_layernorm"))
        return Layer(tuple(Residual(None, (part,), rms_norm(config, f"{at}.{name}", EPS)) for part, name in parts))

    return causal_lm(config, layer, positions=2048, norm=rms_norm(config, "model.norm", EPS))
