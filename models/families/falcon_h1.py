"""Falcon-H1: attention and Mamba-2 side by side in every layer, with multipliers everywhere. Source: transformers'
`modeling_falcon_h1.py`."""

from dataclasses import replace

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer, Residual
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import Mamba2
from ..blueprint.rope import Rope, read_rope
from .shared import common
from .shared.mamba_hybrid import attention, mixer


def model(config: ConfigReader) -> Model:
    """The blueprint of a falcon_h1 checkpoint."""
    config.refuse("attn_layer_indices", (), "every layer has attention")
    config.refuse("mamba_use_mlp", (True,), "every layer has an MLP")
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-5)
    rope = read_rope(config, common.head_dim(config), theta=10000.0)
    gate, down = config.numbers("mlp_multipliers", 2, 1.0)

    def layer(at: str) -> Layer:
        mlp = MLP(
            name=f"{at}.feed_forward",
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            activation=common.silu(config),
            bias=config.flag("mlp_bias", False),
            gate_multiplier=gate,
            down_multiplier=down,
        )
        mixers = (_mixer(config, f"{at}.mamba"), _attention(config, f"{at}.self_attn", rope))
        return Layer(
            (
                Residual(Norm(f"{at}.input_layernorm", hidden, eps), mixers),
                Residual(Norm(f"{at}.pre_ff_layernorm", hidden, eps), (mlp,)),
            )
        )

    return common.causal_lm(
        config,
        (layer(f"model.layers.{i}") for i in range(config.count("num_hidden_layers"))),
        Norm("model.final_layernorm", hidden, eps),
        positions=8192,
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        logits_multiplier=config.number("lm_head_multiplier", 1.0),
    )


def _mixer(config: ConfigReader, name: str) -> Mamba2:
    """`mamba_d_ssm` channels; the norm is over groups, before or after the gate, or is not there."""
    plain = mixer(config, name, config.integer("mamba_d_ssm") if "mamba_d_ssm" in config else None)
    assert plain.norm is not None
    z, x, b, c, dt = config.numbers("ssm_multipliers", 5, 1.0)
    return replace(
        plain,
        norm=replace(plain.norm, groups=plain.n_groups) if config.flag("mamba_rms_norm", False) else None,
        norm_before_gate=config.flag("mamba_norm_before_gate", True),
        out_bias=config.flag("projectors_bias", False),
        in_multiplier=config.number("ssm_in_multiplier", 1.0),
        out_multiplier=config.number("ssm_out_multiplier", 1.0),
        multipliers=(z, x, b, c, dt),
    )


def _attention(config: ConfigReader, name: str, rope: Rope) -> Attention:
    return replace(
        attention(config, name, rope),
        in_multiplier=config.number("attention_in_multiplier", 1.0),
        key_multiplier=config.number("key_multiplier", 1.0),
        out_multiplier=config.number("attention_out_multiplier", 1.0),
    )
