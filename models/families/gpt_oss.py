"""gpt-oss: sliding and full attention in turn, with sinks; experts in every layer. Unquantised weights only; the
published ones are MXFP4. Source: transformers' `modeling_gpt_oss.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.experts import MoE, Router
from ..blueprint.model import Model
from .shared.attention_only import attention, causal_lm, every_nth_full, pre_norm_layer, rms_norm, whole_rope, windows

EPS = 1e-5


def model(config: ConfigReader) -> Model:
    """The blueprint of a gpt_oss checkpoint."""
    config.refuse("hidden_act", ("silu",), "experts have an activation of their own")
    config.refuse("swiglu_limit", (7.0,), "transformers clamps at 7")
    config.require(config.either("rope_parameters", "rope_scaling"))  # absent, transformers makes up a YaRN
    head_dim = config.integer("head_dim", 64)
    rope = whole_rope(config, head_dim, theta=150000.0)
    bias = config.flag("attention_bias", True)
    window = windows(config, every_nth_full(2), default=128)
    top_k = config.integer("num_experts_per_tok", 4)
    config.refuse("experts_per_token", (top_k,), f"num_experts_per_tok is {top_k}")

    def layer(index: int, at: str) -> Layer:
        mixer = attention(
            config, at, head_dim, rope, sliding_window=window[index], qkv_bias=bias, out_bias=bias, sinks=True
        )
        moe = MoE(
            name=f"{at}.mlp",
            hidden_size=config.integer("hidden_size"),
            intermediate_size=config.integer("intermediate_size"),
            num_experts=config.count(config.either("num_local_experts", "num_experts")),
            top_k=top_k,
            router=Router(f"{at}.mlp.router", "softmax_top", bias=True),
            layout="gpt_oss",
            experts=f"{at}.mlp.experts",
        )
        return pre_norm_layer(config, at, mixer, moe, EPS)

    return causal_lm(config, layer, positions=131072, norm=rms_norm(config, "model.norm", EPS))
