"""Qwen3: norms on queries and keys per head; the last layers may slide. Source: transformers' `modeling_qwen3.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from ..blueprint.parts import Norm
from .shared.attention_only import attention, causal_lm, mlp, pre_norm_layer, switched_windows, whole_rope


def model(config: ConfigReader) -> Model:
    """The blueprint of a qwen3 checkpoint."""
    config.refuse("is_causal", (True,), "tokens see those before them only")
    head_dim = config.integer("head_dim", 128)
    eps = config.positive("rms_norm_eps", 1e-6)
    rope = whole_rope(config, head_dim)
    bias = config.flag("attention_bias", False)
    first_sliding = config.integer("max_window_layers", 28, at_least=0)
    window = switched_windows(config, lambda index: index >= first_sliding)

    def layer(index: int, at: str) -> Layer:
        mixer = attention(
            config,
            at,
            head_dim,
            rope,
            sliding_window=window[index],
            qkv_bias=bias,
            out_bias=bias,
            q_norm=Norm(f"{at}.self_attn.q_norm", head_dim, eps),
            k_norm=Norm(f"{at}.self_attn.k_norm", head_dim, eps),
        )
        return pre_norm_layer(config, at, mixer, mlp(config, at))

    return causal_lm(config, layer, positions=32768)
