"""LLaVA: the image token, as often as the tower has features. Source: transformers' `processing_llava.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..inputs import Arrays, VisionFacts
from ..transformers_encoder import TransformersEncoder
from ..transformers_processor import Expansion, TransformersImageProcessor, load_image_processor, square_pixels
from . import GetTensor, given


def encoder(config: Mapping[str, Any], get: GetTensor) -> TransformersEncoder:
    """See `Family`."""
    return TransformersEncoder(config, get)


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> TransformersImageProcessor | None:
    """See `Family`."""
    processor = load_image_processor(folder)
    if processor is None:
        return None
    side = given(config["vision_config"], "image_size", default=224)

    def expand(features: Arrays) -> Expansion:
        return Expansion((vision.image_token_id,), [(square_pixels(features, side), (vision.tokens.most,))])

    return TransformersImageProcessor(processor, expand, vision.image_token_id)
