"""Qwen3.5's images: as Qwen3-VL's, without levels. Source: `modeling_qwen3_5.py`."""

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.vision import Vision
from . import qwen3_vl


def vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
    """Tower and merger of a qwen3_5 checkpoint, or of a mixture of experts."""
    return qwen3_vl.vision(config, preprocessor, text, default_token_id=248056)
