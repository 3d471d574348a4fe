"""Bamba: Mamba-2 with attention in a few layers, half of every head rotated. Source: transformers'
`modeling_bamba.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import Mamba2
from ..blueprint.rope import read_rope
from .shared import common
from .shared.mamba_hybrid import LAYER_KINDS, attention, mixer


def model(config: ConfigReader) -> Model:
    """The blueprint of a bamba checkpoint."""
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-5)
    config.refuse("partial_rotary_factor", (0.5,), "transformers always rotates half of a head")
    rope = read_rope(config, common.head_dim(config), theta=10000.0, rotary_factor=0.5)
    config.refuse("attn_rotary_emb", (rope.rotary_dim,), "transformers always rotates half of a head")

    def layer(index: int, kind: str) -> Layer:
        at = f"model.layers.{index}"
        mixing: Attention | Mamba2 = (
            attention(config, f"{at}.self_attn", rope) if kind == "attention" else mixer(config, f"{at}.mamba")
        )
        mlp = MLP(
            name=f"{at}.feed_forward",
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            activation=common.silu(config),
            bias=config.flag("mlp_bias", False),
        )
        norms = (Norm(f"{at}.{name}", hidden, eps) for name in ("input_layernorm", "pre_ff_layernorm"))
        return common.pre_norm_layer(*zip(norms, (mixing, mlp)))

    return common.causal_lm(
        config,
        (layer(index, kind) for index, kind in enumerate(_kinds(config))),
        Norm("model.final_layernorm", hidden, eps),
        positions=262144,
    )


def _kinds(config: ConfigReader) -> list[str]:
    """ "mamba" or "attention" per layer: listed, or all Mamba but `attn_layer_indices`."""
    count = config.count("num_hidden_layers")
    key = config.either("layer_types", "layers_block_type")
    chosen = config.indices("attn_layer_indices", count, ())
    kinds = ["attention" if index in chosen else "mamba" for index in range(count)]
    if key in config:
        listed = config.kinds(key, LAYER_KINDS, count)
        if "attn_layer_indices" in config and listed != kinds:
            raise config.error(key, config.get(key), f"what attn_layer_indices {sorted(chosen)} says")
        return listed
    return kinds
