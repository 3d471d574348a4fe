"""Granite 4.0 H: Mamba-2 with attention in a few layers, multipliers, experts beside a shared MLP or that MLP alone.
Source: transformers' `modeling_granitemoehybrid.py`."""

from dataclasses import replace

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.experts import MoE, Router
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import Mamba2
from ..blueprint.rope import read_rope
from .shared import common
from .shared.mamba_hybrid import LAYER_KINDS, attention, mixer


def model(config: ConfigReader) -> Model:
    """The blueprint of a granitemoehybrid checkpoint."""
    config.refuse("normalization_function", ("rmsnorm",), "the norms are RMS norms")
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-6)
    positions = config.one_of("position_embedding_type", ("nope", "rope"), default="nope")
    rope = read_rope(config, common.head_dim(config), theta=10000.0) if positions == "rope" else None
    experts = config.count("num_local_experts", 8, at_least=0)

    def mixing(at: str, kind: str) -> Attention | Mamba2:
        if kind == "mamba":
            return _with_eps(mixer(config, f"{at}.mamba"), eps)
        scale = config.positive("attention_multiplier", 1.0)
        return replace(attention(config, f"{at}.self_attn", rope), scale=scale)

    def mlp(at: str) -> MLP | MoE:
        shared = MLP(
            name=f"{at}.shared_mlp",
            hidden_size=hidden,
            intermediate_size=config.integer("shared_intermediate_size", 1024),
            activation=common.silu(config),
            projections=("", "", "output_linear"),
            fused="input_linear",
        )
        if not experts:
            return shared
        return MoE(
            name=f"{at}.block_sparse_moe",
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            num_experts=experts,
            top_k=config.integer("num_experts_per_tok", 2),
            router=Router(f"{at}.block_sparse_moe.router.layer", "softmax_top"),
            layout="stacked",
            experts=f"{at}.block_sparse_moe",
            stacked=("input_linear.weight", "output_linear.weight"),
            activation=common.silu(config),
            shared=shared,
        )

    def layer(index: int, kind: str) -> Layer:
        at = f"model.layers.{index}"
        multiplier = config.number("residual_multiplier", 1.0)
        return common.pre_norm_layer(
            (Norm(f"{at}.input_layernorm", hidden, eps), mixing(at, kind)),
            (Norm(f"{at}.post_attention_layernorm", hidden, eps), mlp(at)),
            multiplier=multiplier,
        )

    return common.causal_lm(
        config,
        (layer(index, kind) for index, kind in enumerate(_kinds(config))),
        Norm("model.norm", hidden, eps),
        positions=2048,
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logits_multiplier=1 / config.positive("logits_scaling", 1.0),
    )


def _with_eps(mamba: Mamba2, eps: float) -> Mamba2:
    """This family's default of `rms_norm_eps` is not bamba's."""
    assert mamba.norm is not None
    return replace(mamba, norm=replace(mamba.norm, eps=eps))


def _kinds(config: ConfigReader) -> list[str]:
    """ "mamba" or "attention" per layer; all are Mamba where the configuration lists none."""
    count = config.count("num_hidden_layers")
    key = config.either("layer_types", "layers_block_type")
    return config.kinds(key, LAYER_KINDS, count) if key in config else ["mamba"] * count
