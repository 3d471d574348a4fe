"""Qwen2.5-VL: the image token, as often as the picture has squares of patches; marks around it are the chat template's.
Source: transformers' `processing_qwen2_5_vl.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..inputs import Arrays, VisionFacts
from ..transformers_encoder import TransformersEncoder
from ..transformers_processor import Expansion, TransformersImageProcessor, load_image_processor
from . import GetTensor, given


def encoder(config: Mapping[str, Any], get: GetTensor) -> TransformersEncoder:
    """See `Family`."""
    return TransformersEncoder(config, get)


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> TransformersImageProcessor | None:
    """See `Family`."""
    processor = load_image_processor(folder, check_sides=False)  # they are areas
    if processor is None:
        return None
    merge = given(config["vision_config"], "spatial_merge_size", default=2)

    def expand(features: Arrays) -> Expansion:
        [(_, height, width)] = features["image_grid_thw"].tolist()
        grid = (height // merge, width // merge)
        return Expansion((vision.image_token_id,), [(features, (grid[0] * grid[1],))], grid)

    return TransformersImageProcessor(processor, expand, vision.image_token_id, tokens=vision.tokens)
