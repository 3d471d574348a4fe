"""Qwen1.5, Qwen2 and 2.5: Llama with biases on queries, keys and values; the last layers may slide. Source:
transformers' `modeling_qwen2.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from .shared import common
from .shared.attention_only import attention, causal_lm, mlp, pre_norm_layer, switched_windows, whole_rope


def model(config: ConfigReader) -> Model:
    """The blueprint of a qwen2 checkpoint."""
    config.refuse("is_causal", (True,), "tokens see those before them only")
    config.refuse("use_mrope", (False,), "positions are those of text")
    head_dim = common.head_dim(config)
    rope = whole_rope(config, head_dim)
    first_sliding = config.integer("max_window_layers", 28, at_least=0)
    window = switched_windows(config, lambda index: index >= first_sliding)

    def layer(index: int, at: str) -> Layer:
        mixer = attention(config, at, head_dim, rope, sliding_window=window[index], qkv_bias=True)
        return pre_norm_layer(config, at, mixer, mlp(config, at))

    return causal_lm(config, layer, positions=32768)
