"""LLaVA: the image token, as often as the tower has features; Pixtral's rows, where that is the tower. Source:
transformers' `processing_llava.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import pixtral
from ..inputs import Arrays, VisionFacts
from ..transformers_encoder import TransformersEncoder
from ..transformers_processor import Expansion, TransformersImageProcessor, load_image_processor, square_pixels
from . import GetTensor, given


def encoder(config: Mapping[str, Any], get: GetTensor) -> TransformersEncoder:
    """See `Family`."""
    return pixtral.RowEncoder(config, get) if _sees_rows(config) else TransformersEncoder(config, get)


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> TransformersImageProcessor | None:
    """See `Family`."""
    if _sees_rows(config):
        return pixtral.image_processor(folder, vision, given(config["vision_config"], "patch_size", default=16))
    processor = load_image_processor(folder)
    if processor is None:
        return None
    side = given(config["vision_config"], "image_size", default=224)

    def expand(features: Arrays) -> Expansion:
        return Expansion((vision.image_token_id,), [(square_pixels(features, side), (vision.tokens.most,))])

    return TransformersImageProcessor(processor, expand, vision.image_token_id)


def _sees_rows(config: Mapping[str, Any]) -> bool:
    return bool(config["vision_config"].get("model_type") == "pixtral")
