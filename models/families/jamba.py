"""Jamba: Mamba-1 with norms on dt, b and c, some attention without positions, experts in some layers.

Source: transformers' `modeling_jamba.py`.
"""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.experts import MoE, Router
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import Mamba1
from .shared import common, mamba_stack


def model(config: ConfigReader) -> Model:
    """The blueprint of a jamba checkpoint."""
    config.refuse("sliding_window", (), "attention is full")
    config.refuse("mamba_inner_layernorms", (True,), "dt, b and c are always normed")
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-6)
    intermediate, activation = config.integer("intermediate_size"), common.silu(config)
    heads = config.integer("num_attention_heads")
    experts = config.count(config.either("num_experts", "num_local_experts"), 16)
    has_attention, has_experts = _every(config, "attn_layer", 8, 4), _every(config, "expert_layer", 2, 1)

    def mixer(index: int, at: str) -> Attention | Mamba1:
        if index in has_attention:
            return Attention(
                name=f"{at}.self_attn",
                hidden_size=hidden,
                num_heads=heads,
                num_kv_heads=config.integer("num_key_value_heads", heads),
                head_dim=common.head_dim(config),
                rope=None,
            )
        at = f"{at}.mamba"
        rank, state = mamba_stack.dt_rank(config, "mamba_dt_rank"), config.integer("mamba_d_state", 16)
        return Mamba1(
            name=at,
            hidden_size=hidden,
            inner_size=config.integer("mamba_expand", 2) * hidden,
            state_size=state,
            dt_rank=rank,
            conv_kernel=config.integer("mamba_d_conv", 4, at_least=2),
            conv_bias=config.flag("mamba_conv_bias", True),
            proj_bias=config.flag("mamba_proj_bias", False),
            dt_norm=Norm(f"{at}.dt_layernorm", rank, eps),
            b_norm=Norm(f"{at}.b_layernorm", state, eps),
            c_norm=Norm(f"{at}.c_layernorm", state, eps),
        )

    def feed_forward(index: int, at: str) -> MLP | MoE:
        if experts == 1 or index not in has_experts:
            return MLP(at, hidden, intermediate, activation)
        return MoE(
            name=at,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_experts=experts,
            top_k=config.integer("num_experts_per_tok", 2),
            router=Router(f"{at}.router", "softmax"),
            layout="list",
            experts=f"{at}.experts",
            activation=activation,
        )

    def layer(index: int) -> Layer:
        at = f"model.layers.{index}"
        return common.pre_norm_layer(
            (Norm(f"{at}.input_layernorm", hidden, eps), mixer(index, at)),
            (Norm(f"{at}.pre_ff_layernorm", hidden, eps), feed_forward(index, f"{at}.feed_forward")),
        )

    return common.causal_lm(
        config,
        (layer(index) for index in range(config.count("num_hidden_layers"))),
        Norm("model.final_layernorm", hidden, eps),
        positions=262144,
    )


def _every(config: ConfigReader, key: str, period: int, offset: int) -> range:
    """The layers that `{key}_period` and `{key}_offset` mean; period and offset: where they are absent."""
    period = config.integer(f"{key}_period", period)
    offset = config.integer(f"{key}_offset", offset, at_least=0, at_most=period - 1)
    return range(offset, config.count("num_hidden_layers"), period)
