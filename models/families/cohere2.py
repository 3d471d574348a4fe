"""Cohere2 (Command R7B, Command A): attention and MLP side by side after one LayerNorm; rope, of neighbouring pairs,
where the window slides only. Source: transformers' `modeling_cohere2.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer, Residual
from ..blueprint.model import Model
from ..blueprint.parts import Norm
from .shared import common
from .shared.attention_only import attention, causal_lm, every_nth_full, mlp, whole_rope, windows

# Keys of published configurations that transformers does not read -> what it computes.
_FIXED = {
    "use_qk_norm": False,
    "use_parallel_block": True,
    "use_gated_activation": True,
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "order_of_interleaved_layers": "local_attn_first",
}


def model(config: ConfigReader) -> Model:
    """The blueprint of a cohere2 checkpoint."""
    for key, value in _FIXED.items():
        config.refuse(key, (value,), f"only {value!r} is")
    hidden, eps = config.integer("hidden_size"), config.positive("layer_norm_eps", 1e-5)
    head_dim = common.head_dim(config)
    rope = whole_rope(config, head_dim, interleaved=True)
    bias = config.flag("attention_bias", False)
    window = windows(config, every_nth_full(config.integer("sliding_window_pattern", 4)))

    def layer(index: int, at: str) -> Layer:
        mixer = attention(
            config,
            at,
            head_dim,
            None if window[index] is None else rope,
            sliding_window=window[index],
            qkv_bias=bias,
            out_bias=bias,
        )
        norm = Norm(f"{at}.input_layernorm", hidden, eps, kind="layer")
        return Layer((Residual(norm, (mixer, mlp(config, at))),))

    return causal_lm(
        config,
        layer,
        positions=8192,
        norm=Norm("model.norm", hidden, eps, kind="layer"),
        tied=True,
        logits_multiplier=config.number("logit_scale", 0.0625),
    )
