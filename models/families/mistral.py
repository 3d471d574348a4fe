"""Mistral: Llama with a sliding window in all layers or in none. Source: transformers' `modeling_mistral.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from .shared import common
from .shared.attention_only import attention, causal_lm, mlp, pre_norm_layer, whole_rope


def model(config: ConfigReader) -> Model:
    """The blueprint of a mistral checkpoint."""
    config.refuse("layer_types", (), "all layers attend alike")
    head_dim = common.head_dim(config)
    rope = whole_rope(config, head_dim)
    window = None if config.is_null("sliding_window") else config.integer("sliding_window", 4096)

    def layer(index: int, at: str) -> Layer:
        mixer = attention(config, at, head_dim, rope, sliding_window=window)
        return pre_norm_layer(config, at, mixer, mlp(config, at))

    return causal_lm(config, layer, positions=131072)
