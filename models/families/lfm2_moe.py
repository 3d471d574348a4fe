"""LFM2 MoE: see `lfm_hybrid`; experts behind the first few layers, routed by corrected sigmoids. Source: transformers'
`modeling_lfm2_moe.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.experts import MoE, Router
from ..blueprint.model import Model
from ..blueprint.parts import MLP
from .shared import lfm_hybrid


def model(config: ConfigReader) -> Model:
    """The blueprint of an lfm2_moe checkpoint."""
    dense_layers = config.integer("num_dense_layers", 2, at_least=0)

    def feed_forward(index: int, at: str) -> MLP | MoE:
        if index < dense_layers:
            return lfm_hybrid.mlp(config, at, config.integer("intermediate_size"))
        return MoE(
            name=at,
            hidden_size=config.integer("hidden_size"),
            intermediate_size=config.integer("moe_intermediate_size"),
            num_experts=config.count("num_experts"),
            top_k=config.integer("num_experts_per_tok"),
            router=Router(
                f"{at}.gate",
                "sigmoid",
                normalise=config.flag("norm_topk_prob", True),
                sum_eps=1e-6,
                scale=config.number("routed_scaling_factor", 1.0),
                correction=f"{at}.expert_bias" if config.flag("use_expert_bias", True) else None,
            ),
            layout="list",
            experts=f"{at}.experts",
            projections=lfm_hybrid.PROJECTIONS,
        )

    kinds = config.kinds("layer_types", lfm_hybrid.KINDS, config.count("num_hidden_layers"))
    return lfm_hybrid.model(config, kinds, feed_forward)
