"""Qwen2.5-VL's images: of any size, in a tower whose blocks mostly attend within windows.
Source: `modeling_qwen2_5_vl.py`."""

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.qwen_towers import qwen2_5_tower
from ...blueprint.scaled_tokens import read_scaled_tokens
from ...blueprint.vision import Vision
from . import image_token_id

TOKENS = (4, 16384)  # fewest and most of the published checkpoints


def vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
    """Tower and merger of a qwen2_5_vl checkpoint."""
    tower = qwen2_5_tower(config.reader("vision_config"), text.decoder.hidden_size)
    return Vision(
        tensors=tower.tensors,
        image_token_id=image_token_id(config, text, 151655),
        tokens=read_scaled_tokens(preprocessor, tower.patches, TOKENS),
    )
