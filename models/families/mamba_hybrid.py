"""What bamba, granitemoehybrid and falcon_h1 spell alike: Mamba-2 mixers (`mamba_*`), attention, kinds of layers.

Source: transformers' `modeling_bamba.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.parts import Activation, Attention, Norm
from ..blueprint.recurrent import Mamba2
from ..blueprint.rope import Rope
from . import common

# How published files and transformers 5 spell the kinds of layers.
LAYER_KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


def mixer(config: ConfigReader, name: str, inner: int | None = None) -> Mamba2:
    """A mixer whose norm is over all channels and after the gate. inner: its channels, mamba_expand * hidden_size
    where None; heads and their size must agree with it."""
    hidden = config.integer("hidden_size")
    inner = config.integer("mamba_expand", 2) * hidden if inner is None else inner
    heads = config.integer("mamba_n_heads", 128)
    if config.get("mamba_d_head", "auto") == "auto":
        head_dim = inner // heads
    else:
        head_dim = config.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise config.error("mamba_n_heads", heads, f"{inner} channels divided by mamba_d_head ({head_dim})")
    return Mamba2(
        name=name,
        hidden_size=hidden,
        num_heads=heads,
        head_dim=head_dim,
        state_size=config.integer("mamba_d_state", 256),
        n_groups=config.integer("mamba_n_groups", 1),
        conv_kernel=config.integer("mamba_d_conv", 4, at_least=2),
        norm=Norm(f"{name}.norm", inner, config.positive("rms_norm_eps", 1e-5)),
        conv_bias=config.flag("mamba_conv_bias", True),
        proj_bias=config.flag("mamba_proj_bias", False),
        dt_limit=common.time_step_limit(config),
    )


def attention(config: ConfigReader, name: str, rope: Rope | None) -> Attention:
    """Grouped-query attention, with biases in all projections or in none."""
    heads = config.integer("num_attention_heads", 32)
    bias = config.flag("attention_bias", False)
    return Attention(
        name=name,
        hidden_size=config.integer("hidden_size"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=common.head_dim(config),
        rope=rope,
        qkv_bias=bias,
        out_bias=bias,
    )


def activation(config: ConfigReader) -> Activation:
    """`hidden_act` of families where it is also the activation behind the mixers' convolution: silu."""
    config.one_of("hidden_act", ("silu", "swish"), default="silu")
    return "silu"
