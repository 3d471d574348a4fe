"""Qwen3-VL's images: of any size, with a level of embeddings for each of several layers of the decoder.
Source: `modeling_qwen3_vl.py`."""

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.qwen_towers import qwen3_tower
from ...blueprint.scaled_tokens import read_scaled_tokens
from ...blueprint.vision import Vision
from . import image_token_id

TOKENS = (64, 16384)  # fewest and most of the published checkpoints


def vision(
    config: ConfigReader, preprocessor: ConfigReader | None, text: Model, default_token_id: int = 151655
) -> Vision:
    """Tower and mergers of a qwen3_vl checkpoint. default_token_id: of images, where no key says so."""
    decoder = text.decoder
    tower = qwen3_tower(config.reader("vision_config"), decoder.hidden_size, decoder.deepstack)
    return Vision(
        tensors=tower.tensors,
        image_token_id=image_token_id(config, text, default_token_id),
        tokens=read_scaled_tokens(preprocessor, tower.patches, TOKENS),
    )
