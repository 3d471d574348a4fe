"""Qwen3 MoE: Qwen3's attention (norms on queries and keys), experts in most layers. Source: transformers'
`modeling_qwen3_moe.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.experts import MoE, Router
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Norm
from .shared import common
from .shared.attention_only import attention, causal_lm, mlp, pre_norm_layer, whole_rope


def model(config: ConfigReader) -> Model:
    """The blueprint of a qwen3_moe checkpoint."""
    config.refuse("use_sliding_window", (False,), "no published checkpoint uses it")
    eps = config.positive("rms_norm_eps", 1e-6)
    head_dim = common.head_dim(config)
    rope = whole_rope(config, head_dim)
    bias = config.flag("attention_bias", False)
    dense_layers = config.indices("mlp_only_layers", config.count("num_hidden_layers"), ())
    step = config.integer("decoder_sparse_step", 1)

    def feed_forward(index: int, at: str) -> MLP | MoE:
        if index in dense_layers or (index + 1) % step:
            return mlp(config, at)
        return MoE(
            name=f"{at}.mlp",
            hidden_size=config.integer("hidden_size"),
            intermediate_size=config.integer("moe_intermediate_size"),
            num_experts=config.count(config.either("num_experts", "num_local_experts")),
            top_k=config.integer("num_experts_per_tok"),
            router=Router(f"{at}.mlp.gate", "softmax", normalise=config.flag("norm_topk_prob", False)),
            layout="list",
            experts=f"{at}.mlp.experts",
            activation=common.activation(config, default="silu"),
        )

    def layer(index: int, at: str) -> Layer:
        mixer = attention(
            config,
            at,
            head_dim,
            rope,
            qkv_bias=bias,
            out_bias=bias,
            q_norm=Norm(f"{at}.self_attn.q_norm", head_dim, eps),
            k_norm=Norm(f"{at}.self_attn.k_norm", head_dim, eps),
        )
        return pre_norm_layer(config, at, mixer, feed_forward(index, at))

    return causal_lm(config, layer, positions=32768)
