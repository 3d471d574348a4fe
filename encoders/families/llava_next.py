"""LLaVA-NeXT: the image token, as often as the tiles of a picture have features, its lines marks, and its padding none.
Source: transformers' `processing_llava_next.py`."""

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
        [(height, width)] = features["image_sizes"].tolist()
        [tiles] = features["pixel_values"]
        arrays = {**square_pixels({"pixel_values": tiles}, side, len(tiles)), "image_sizes": features["image_sizes"]}
        return Expansion((vision.image_token_id,), [(arrays, vision.tokens(width, height).entries)])

    return TransformersImageProcessor(processor, expand, vision.image_token_id, tokens=vision.tokens, do_pad=True)
