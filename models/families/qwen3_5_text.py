"""Qwen3.5, the text model: see `qwen_hybrid`. For text alone the three positions of its rope are one, which makes it a
plain rope. Source: transformers' `modeling_qwen3_5.py`."""

from ..blueprint.config_reader import ConfigReader
from ..blueprint.model import Model
from .shared import qwen_hybrid


def model(config: ConfigReader) -> Model:
    """The blueprint of a qwen3_5_text checkpoint."""
    return qwen_hybrid.model(config, "split", qwen_hybrid.dense)
