"""Qwen3-Next and Qwen3.5: gated delta nets, and gated full attention with partial rope, every norm but the delta net's
with an offset of 1. No family by itself. Source: transformers' `modeling_qwen3_next.py` and `modeling_qwen3_5.py`."""

from collections.abc import Callable
from typing import Literal

from ...blueprint.config_reader import ConfigReader
from ...blueprint.decoder import Layer
from ...blueprint.experts import MoE, Router
from ...blueprint.model import Model
from ...blueprint.parts import MLP, Attention, Norm
from ...blueprint.recurrent import GatedDeltaNet
from ...blueprint.rope import read_rope
from . import common

KINDS = {"linear_attention": "delta", "full_attention": "full"}
TEXT_OF_A_VLM = ("model.language_model.", "model.")


def model(
    config: ConfigReader, layout: Literal["fused", "split"], mlp: Callable[[ConfigReader, int, str], MLP | MoE]
) -> Model:
    """The blueprint of a checkpoint. layout: of the delta nets' projections; mlp(config, layer, name) ends a layer."""
    config.refuse("attn_output_gate", (True,), "attention has an output gate here")
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-6)
    head_dim = config.integer("head_dim", 256)
    rope = read_rope(config, head_dim, theta=10000.0, rotary_factor=0.25)

    def norm(name: str, size: int = hidden) -> Norm:
        return Norm(name, size, eps, offset=1.0)

    def attention(at: str) -> Attention:
        bias = config.flag("attention_bias", False)
        return Attention(
            name=at,
            hidden_size=hidden,
            num_heads=config.integer("num_attention_heads"),
            num_kv_heads=config.integer("num_key_value_heads"),
            head_dim=head_dim,
            rope=rope,
            qkv_bias=bias,
            out_bias=bias,
            q_norm=norm(f"{at}.q_norm", head_dim),
            k_norm=norm(f"{at}.k_norm", head_dim),
            output_gate=True,
        )

    def delta_net(at: str) -> GatedDeltaNet:
        v_head_dim = config.integer("linear_value_head_dim", 128)
        return GatedDeltaNet(
            name=at,
            hidden_size=hidden,
            num_k_heads=config.integer("linear_num_key_heads", 16),
            num_v_heads=config.integer("linear_num_value_heads", 32),
            k_head_dim=config.integer("linear_key_head_dim", 128),
            v_head_dim=v_head_dim,
            conv_kernel=config.integer("linear_conv_kernel_dim", 4, at_least=2),
            norm=Norm(f"{at}.norm", v_head_dim, eps),
            layout=layout,
        )

    def layer(index: int, kind: str) -> Layer:
        at = f"model.layers.{index}"
        mixer = attention(f"{at}.self_attn") if kind == "full" else delta_net(f"{at}.linear_attn")
        return common.pre_norm_layer(
            (norm(f"{at}.input_layernorm"), mixer),
            (norm(f"{at}.post_attention_layernorm"), mlp(config, index, f"{at}.mlp")),
        )

    return common.causal_lm(
        config,
        (layer(index, kind) for index, kind in enumerate(_kinds(config))),
        norm("model.norm"),
        positions=32768,
        ignored=(common.MTP,),
        prefixes=(TEXT_OF_A_VLM,),
    )


def dense(config: ConfigReader, index: int, at: str) -> MLP:
    """SwiGLU, the same in all layers."""
    del index
    return MLP(at, config.integer("hidden_size"), config.integer("intermediate_size"), common.silu(config))


def experts(config: ConfigReader, index: int, at: str) -> MoE:
    """Experts whose weights are normalised, and a shared expert behind a gate. Some published files stack them."""
    del index
    hidden, activation = config.integer("hidden_size"), common.silu(config)
    return MoE(
        name=at,
        hidden_size=hidden,
        intermediate_size=config.integer("moe_intermediate_size"),
        num_experts=config.count(config.either("num_experts", "num_local_experts")),
        top_k=config.integer("num_experts_per_tok"),
        router=Router(f"{at}.gate", "softmax", normalise=True),
        layout="list",
        experts=f"{at}.experts",
        activation=activation,
        shared=MLP(f"{at}.shared_expert", hidden, config.integer("shared_expert_intermediate_size"), activation),
        shared_gate=f"{at}.shared_expert_gate.weight",
    )


def _kinds(config: ConfigReader) -> list[str]:
    """What mixes the tokens of every layer."""
    layers = config.count("num_hidden_layers")
    if "layer_types" in config:
        return config.kinds("layer_types", KINDS, layers)
    interval = config.integer("full_attention_interval", 4)
    return ["delta" if (index + 1) % interval else "full" for index in range(layers)]
