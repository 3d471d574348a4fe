"""Mamba-2: nothing but state space duality. Source: transformers' `modeling_mamba2.py`.

Published files also say `norm_before_gate`, which transformers does not read: the gate always comes before the norm.
"""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from ..blueprint.parts import Norm
from ..blueprint.recurrent import Mamba2
from .shared import common, mamba_stack


def model(config: ConfigReader) -> Model:
    """The blueprint of a mamba2 checkpoint."""
    hidden = config.integer("hidden_size")
    heads, head_dim = config.integer("num_heads", 128), config.integer("head_dim", 64)
    inner, expand = heads * head_dim, config.integer("expand", 2)
    if expand * hidden != inner:
        raise config.error("expand", expand, f"num_heads * head_dim / hidden_size ({inner} / {hidden})")
    eps = config.positive("layer_norm_epsilon", 1e-5)

    def mixer(at: str) -> Mamba2:
        return Mamba2(
            name=at,
            hidden_size=hidden,
            num_heads=heads,
            head_dim=head_dim,
            state_size=config.integer("state_size", 128),
            n_groups=config.integer("n_groups", 8),
            conv_kernel=config.integer("conv_kernel", 4, at_least=2),
            norm=Norm(f"{at}.norm", inner, eps),
            conv_bias=config.flag("use_conv_bias", True),
            proj_bias=config.flag("use_bias", False),
            dt_limit=common.step_size_limit(config, "time_step_limit"),
        )

    return mamba_stack.model(config, mixer, tied=False)
