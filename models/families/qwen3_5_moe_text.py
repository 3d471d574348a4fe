"""Qwen3.5 MoE, the text model: see `qwen3_5_text`; experts in all layers. Source: transformers'
`modeling_qwen3_5_moe.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from .shared import qwen_hybrid


def model(config: ConfigReader) -> Model:
    """The blueprint of a qwen3_5_moe_text checkpoint."""
    return qwen_hybrid.model(config, "split", qwen_hybrid.experts)
