"""Zamba2: Mamba-2, and in some layers before it a block of attention and MLP of which there are only a few, used in
turn. Source: transformers' `modeling_zamba2.py`."""

from math import inf

from ..blueprint.config_reader import ConfigReader
from ..blueprint.decoder import Layer, Residual
from ..blueprint.model import Model
from ..blueprint.parts import Norm
from ..blueprint.recurrent import Mamba2
from ..blueprint.rope import read_rope
from ..blueprint.zamba2 import Adapters, SharedBlock, SharedHybrid
from .shared import common

# As transformers 5, published files and the oldest ones spell them.
KINDS = {"linear_attention": "mamba", "mamba": "mamba", "m": "mamba", "hybrid": "hybrid", "g": "hybrid"}
MIXER_EPS = 1e-5  # of the mixers' norms, whatever the configuration says


def model(config: ConfigReader) -> Model:
    """The blueprint of a zamba2 checkpoint."""
    config.refuse("tie_word_embeddings", (True,), "transformers 5 does not share the blocks then either")
    config.refuse("use_long_context", (False,), "transformers 5 does not rescale the rope for it")
    hidden, eps = config.integer("hidden_size"), config.positive("rms_norm_eps", 1e-5)
    kinds = config.kinds(
        config.either("layers_block_type", "layer_types"), KINDS, config.count("num_hidden_layers", 54)
    )
    hybrids = [index for index, kind in enumerate(kinds) if kind == "hybrid"]
    num_blocks = config.integer("num_mem_blocks", 1)
    blocks = [_block(config, f"model.layers.{index}.shared_transformer") for index in hybrids[:num_blocks]]

    def layer(index: int, kind: str) -> Layer:
        at = f"model.layers.{index}"
        if kind == "mamba":
            norm = Norm(f"{at}.input_layernorm", hidden, eps)
            return Layer((Residual(norm, (_mixer(config, f"{at}.mamba"),)),))
        use = hybrids.index(index)
        block = blocks[use % num_blocks]
        part = SharedHybrid(
            block=block,
            adapters=_adapters(config, block, use),
            linear=f"{at}.linear",
            norm=Norm(f"{at}.mamba_decoder.input_layernorm", hidden, eps),
            mixer=_mixer(config, f"{at}.mamba_decoder.mamba"),
        )
        return Layer((Residual(None, (part,)),))

    # Some checkpoints repeat a shared block in every layer that uses it.
    copies = tuple(rf"model\.layers\.{index}\.shared_transformer\..*" for index in hybrids[num_blocks:])
    return common.causal_lm(
        config,
        (layer(index, kind) for index, kind in enumerate(kinds)),
        Norm("model.final_layernorm", hidden, eps),
        positions=4096,
        tied=True,
        ignored=(*copies,),
    )


def _mixer(config: ConfigReader, name: str) -> Mamba2:
    """Step sizes are at least `time_step_min`, as in transformers' modeling."""
    config.refuse("use_conv_bias", (True,), "transformers always adds the convolution's bias")
    hidden, heads = config.integer("hidden_size"), config.integer("n_mamba_heads", 8)
    inner = config.scaled("mamba_expand", hidden, 2)
    head_dim = config.multiple("n_mamba_heads", inner, "n_mamba_heads", heads) // heads
    config.refuse("mamba_headdim", (head_dim,), f"{inner} channels are divided among {heads} heads")
    groups = config.integer("mamba_ngroups", 1)
    bias = config.flag("add_bias_linear", False)
    return Mamba2(
        name=name,
        hidden_size=hidden,
        num_heads=heads,
        head_dim=head_dim,
        state_size=config.integer("mamba_d_state", 64),
        n_groups=groups,
        conv_kernel=config.integer("mamba_d_conv", 4, at_least=2),
        norm=Norm(f"{name}.norm", inner, MIXER_EPS, groups=groups),
        proj_bias=bias,
        dt_limit=(config.number("time_step_min", 0.001), inf),
    )


def _block(config: ConfigReader, name: str) -> SharedBlock:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads", 32)
    head_dim = config.multiple("hidden_size", 2 * hidden, "num_attention_heads", heads) // heads
    config.refuse("attention_head_dim", (head_dim,), f"twice hidden_size is divided among {heads} heads")
    return SharedBlock(
        name=name,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=read_rope(config, head_dim, theta=10000.0) if config.flag("use_mem_rope", False) else None,
        intermediate_size=config.integer("intermediate_size", 4 * hidden),
        activation=common.activation(config, default="gelu"),
        eps=config.positive("rms_norm_eps", 1e-5),
        mlp_bias=config.flag("add_bias_linear", False),
    )


def _adapters(config: ConfigReader, block: SharedBlock, use: int) -> Adapters:
    """Those of a hybrid layer, `use` others before it. Attention has them only where the configuration says so."""
    at = block.name
    queries, keys, values = (f"{at}.self_attn.linear_{which}_adapter_list.{use}" for which in "qkv")
    adapted = config.flag("use_shared_attention_adapter", False)
    if adapted and block.num_kv_heads != block.num_heads:
        raise config.error("num_key_value_heads", block.num_kv_heads, f"{block.num_heads} where attention has adapters")
    return Adapters(
        attention=(queries, keys, values) if adapted else None,
        mlp=f"{at}.feed_forward.gate_up_proj_adapter_list.{use}",
        rank=config.integer("adapter_rank", 128),
    )
