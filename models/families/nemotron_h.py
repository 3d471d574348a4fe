"""Nemotron-H and Nemotron 3: one mixer per layer, Mamba-2, attention without positions, an MLP or experts. Source:
transformers' `modeling_nemotron_h.py`."""

from math import inf

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer, Part
from ..blueprint.experts import Latent, MoE, Router
from ..blueprint.model import Model
from ..blueprint.parts import MLP, Attention, Norm
from ..blueprint.recurrent import Mamba2
from .shared import common
from .shared.mamba_hybrid import LAYER_KINDS

PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # hybrid_override_pattern
KINDS = LAYER_KINDS | {"mlp": "mlp", "moe": "moe"}  # layers_block_type


def model(config: ConfigReader) -> Model:
    """The blueprint of a nemotron_h checkpoint."""
    config.refuse("sliding_window", (), "attention is full")
    config.refuse("residual_in_fp32", (False,), "the residual stream has the model's dtype")
    config.refuse("tie_word_embeddings", (False,), "transformers does not tie this family's head")
    config.refuse("attention_bias", (False,), "attention has no biases")
    hidden, eps = config.integer("hidden_size"), config.positive("layer_norm_epsilon", 1e-5)

    def layer(index: int, kind: str) -> Layer:
        at = f"backbone.layers.{index}"
        return common.pre_norm_layer((Norm(f"{at}.norm", hidden, eps), _part(config, f"{at}.mixer", kind)))

    return common.causal_lm(
        config,
        (layer(index, kind) for index, kind in enumerate(_kinds(config))),
        Norm("backbone.norm_f", hidden, eps),
        positions=4096,
        embedding="backbone.embeddings.weight",
        ignored=(common.MTP,),
    )


def _kinds(config: ConfigReader) -> list[str]:
    """ "mamba", "attention", "mlp" or "moe" per layer; `num_hidden_layers` may be absent."""
    count = config.count("num_hidden_layers") if "num_hidden_layers" in config else None
    key = config.either("layers_block_type", "layer_types")
    if key in config:
        return config.kinds(key, KINDS, count)
    key = "hybrid_override_pattern"
    pattern = config.require(key)
    if not isinstance(pattern, str):
        raise config.error(key, pattern, "a string")
    return ConfigReader({key: list(pattern)}).kinds(key, PATTERN, count)


def _part(config: ConfigReader, name: str, kind: str) -> Part:
    match kind:
        case "mamba":
            return _mixer(config, name)
        case "attention":
            return _attention(config, name)
        case "moe":
            return _experts(config, name)
        case _:
            return _mlp(config, name, config.integer("intermediate_size"))


def _mixer(config: ConfigReader, name: str) -> Mamba2:
    """Step sizes are at least `time_step_min`, as in transformers' modeling (`time_step_limit` is not read there)."""
    config.refuse("mamba_hidden_act", ("silu", "swish"), "the convolution is followed by silu")
    config.refuse("mamba_proj_bias", (False,), "biases of projections are use_bias")
    key = config.either("mamba_dt_limit", "time_step_limit")
    if common.step_size_limit(config, key) != (0.0, inf):
        raise config.error(key, config.get(key), "from 0 to infinity")
    heads, head_dim = config.integer("mamba_num_heads", 128), config.integer("mamba_head_dim", 64)
    groups = config.integer(config.either("mamba_n_groups", "n_groups"), 8)
    eps = config.positive("layer_norm_epsilon", 1e-5)
    return Mamba2(
        name=name,
        hidden_size=config.integer("hidden_size"),
        num_heads=heads,
        head_dim=head_dim,
        state_size=config.integer("ssm_state_size", 128),
        n_groups=groups,
        conv_kernel=config.integer(config.either("mamba_d_conv", "conv_kernel"), 4, at_least=2),
        norm=Norm(f"{name}.norm", heads * head_dim, eps, groups=groups),
        conv_bias=config.flag(config.either("mamba_conv_bias", "use_conv_bias"), True),
        proj_bias=config.flag("use_bias", False),
        dt_limit=(config.number(config.either("mamba_dt_min", "time_step_min"), 0.001), inf),
    )


def _attention(config: ConfigReader, name: str) -> Attention:
    return Attention(
        name=name,
        hidden_size=config.integer("hidden_size"),
        num_heads=config.integer("num_attention_heads", 32),
        num_kv_heads=config.integer("num_key_value_heads", 8),
        head_dim=config.integer(config.either("head_dim", "attention_head_dim"), 128),
        rope=None,
    )


def _mlp(config: ConfigReader, name: str, size: int) -> MLP:
    return MLP(
        name=name,
        hidden_size=config.integer("hidden_size"),
        intermediate_size=size,
        activation=common.activation(config, "mlp_hidden_act", "relu2"),
        gated=False,
        bias=config.flag("mlp_bias", False),
    )


def _experts(config: ConfigReader, name: str) -> MoE:
    config.refuse("n_shared_experts", (1,), "one shared expert stands beside the others")
    latent = None
    if "moe_latent_size" in config:
        size, bias = config.integer("moe_latent_size"), config.flag("mlp_bias", False)
        latent = Latent(size, f"{name}.fc1_latent_proj", f"{name}.fc2_latent_proj", bias)
    count = config.count(config.either("n_routed_experts", "num_local_experts"), 8)
    groups = config.integer("n_group", 1)
    config.multiple(config.either("n_routed_experts", "num_local_experts"), count, "n_group", groups)
    return MoE(
        name=name,
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("moe_intermediate_size", 7688),
        num_experts=count,
        top_k=config.integer("num_experts_per_tok", 2),
        router=Router(
            f"{name}.gate",
            "sigmoid",
            normalise=config.flag("norm_topk_prob", True),
            scale=config.number("routed_scaling_factor", 1.0),
            correction=f"{name}.gate.e_score_correction_bias",
            groups=groups,
            top_groups=config.integer("topk_group", 1, at_most=groups),
        ),
        layout="list",
        experts=f"{name}.experts",
        activation=common.activation(config, "mlp_hidden_act", "relu2"),
        gated=False,
        latent=latent,
        shared=_mlp(config, f"{name}.shared_experts", config.integer("moe_shared_expert_intermediate_size", 7688)),
    )
