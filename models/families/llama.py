"""Llama 2 and 3.x, SmolLM2: full attention with rope, SwiGLU. Source: transformers' `modeling_llama.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from .shared import common
from .shared.attention_only import attention, causal_lm, mlp, pre_norm_layer, whole_rope


def model(config: ConfigReader) -> Model:
    """The blueprint of a llama checkpoint."""
    head_dim = common.head_dim(config)
    rope = whole_rope(config, head_dim)
    bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)

    def layer(index: int, at: str) -> Layer:
        mixer = attention(config, at, head_dim, rope, qkv_bias=bias, out_bias=bias)
        return pre_norm_layer(config, at, mixer, mlp(config, at, bias=mlp_bias))

    return causal_lm(config, layer, positions=2048)
