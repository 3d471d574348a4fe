"""Gemma 3: an image between marks and empty lines. Source: transformers' `processing_gemma3.py`, which leaves pan and
scan off whatever the checkpoint says."""

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
    begin = given(config, "boi_token_index", "boi_token_id", default=255999)
    end = given(config, "eoi_token_index", "eoi_token_id", default=256000)

    def expand(features: Arrays) -> Expansion:
        entry = (square_pixels(features, side), (vision.tokens.most,))
        return Expansion(("\n\n", begin, vision.image_token_id, end, "\n\n"), [entry])

    return TransformersImageProcessor(
        processor, expand, vision.image_token_id, placeholder_id=begin, do_pan_and_scan=False
    )
