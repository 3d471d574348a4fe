"""Granite 3.x: Llama with multipliers on embeddings, scores, residual branches and logits. Source: transformers'
`modeling_granite.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from .shared import common
from .shared.attention_only import attention, causal_lm, mlp, pre_norm_layer, whole_rope


def model(config: ConfigReader) -> Model:
    """The blueprint of a granite checkpoint."""
    head_dim = common.head_dim(config)
    rope = whole_rope(config, head_dim)
    bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    scale = config.number("attention_multiplier", 1.0)
    residual = config.number("residual_multiplier", 1.0)

    def layer(index: int, at: str) -> Layer:
        mixer = attention(config, at, head_dim, rope, scale=scale, qkv_bias=bias, out_bias=bias)
        return pre_norm_layer(config, at, mixer, mlp(config, at, bias=mlp_bias), scale=residual)

    return causal_lm(
        config,
        layer,
        positions=2048,
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logits_multiplier=1 / config.positive("logits_scaling", 1.0),
    )
