"""Qwen3-Next: see `qwen_hybrid`; experts in most layers. Source: transformers' `modeling_qwen3_next.py`."""

from dataclasses import replace

from ..blueprint.config_reader import ConfigReader
from ..blueprint.experts import MoE
from ..blueprint.model import Model
from ..blueprint.parts import MLP
from .shared import qwen_hybrid


def model(config: ConfigReader) -> Model:
    """The blueprint of a qwen3_next checkpoint."""
    return qwen_hybrid.model(config, "fused", _mlp)


def _mlp(config: ConfigReader, index: int, at: str) -> MLP | MoE:
    dense = index in config.indices("mlp_only_layers", config.count("num_hidden_layers"), ())
    no_experts = config.count("num_experts", at_least=0) == 0
    if dense or no_experts or (index + 1) % config.integer("decoder_sparse_step", 1):
        return qwen_hybrid.dense(config, index, at)
    moe = qwen_hybrid.experts(config, index, at)
    return replace(moe, router=replace(moe.router, normalise=config.flag("norm_topk_prob", True)))
