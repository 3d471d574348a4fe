"""What the purely recurrent families share: layers of one norm and one mixer under `backbone.`, and Mamba-1's keys.

No family: `mamba`, `mamba2` and `falcon_mamba` are. Source: transformers' `modeling_mamba.py` and its kin.
"""

from collections.abc import Callable

from ...blueprint.config_reader import ConfigReader
from ...blueprint.decoder import Layer, Part
from ...blueprint.model import Model
from ...blueprint.parts import Norm
from ...blueprint.recurrent import Mamba1
from . import common


def model(config: ConfigReader, mixer: Callable[[str], Part], tied: bool) -> Model:
    """The blueprint of a stack of mixers. mixer: from the prefix of its tensors; tied: what an absent key means."""
    config.refuse("hidden_act", ("silu", "swish"), "the gate is SiLU whatever it says")
    config.refuse("rms_norm", (True,), "the norms are RMS norms")
    hidden, eps = config.integer("hidden_size"), config.positive("layer_norm_epsilon", 1e-5)

    def layer(at: str) -> Layer:
        return common.pre_norm_layer((Norm(f"{at}.norm", hidden, eps), mixer(f"{at}.mixer")))

    return common.causal_lm(
        config,
        (layer(f"backbone.layers.{i}") for i in range(config.count("num_hidden_layers"))),
        Norm("backbone.norm_f", hidden, eps),
        positions=common.RECURRENT_POSITIONS,
        tied=tied,
        embedding="backbone.embeddings.weight",
        residual_float32=config.flag("residual_in_fp32", True),
    )


def mamba1(config: ConfigReader, at: str, norm: Callable[[str, int], Norm] | None = None) -> Mamba1:
    """The mixer that `mamba` and `falcon_mamba` spell alike. norm: of dt, b and c, from name and size.

    `intermediate_size` counts, `expand` only where it is absent: there are files whose `expand` means nothing.
    """
    hidden = config.integer("hidden_size")
    rank, state = dt_rank(config, "time_step_rank"), config.integer("state_size", 16)
    return Mamba1(
        name=at,
        hidden_size=hidden,
        inner_size=config.integer("intermediate_size")
        if "intermediate_size" in config
        else config.integer("expand", 2) * hidden,
        state_size=state,
        dt_rank=rank,
        conv_kernel=config.integer("conv_kernel", 4, at_least=2),
        conv_bias=config.flag("use_conv_bias", True),
        proj_bias=config.flag("use_bias", False),
        dt_norm=None if norm is None else norm(f"{at}.dt_layernorm", rank),
        b_norm=None if norm is None else norm(f"{at}.b_layernorm", state),
        c_norm=None if norm is None else norm(f"{at}.c_layernorm", state),
    )


def dt_rank(config: ConfigReader, key: str) -> int:
    """The rank of Mamba-1's step size; "auto" means hidden_size / 16, rounded up."""
    if config.get(key, "auto") == "auto":
        return -(-config.integer("hidden_size") // 16)
    return config.integer(key)
