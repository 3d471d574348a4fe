"""Mistral 3: Pixtral's rows, of patches that were merged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import pixtral
from ..inputs import VisionFacts
from ..transformers_processor import TransformersImageProcessor
from . import GetTensor, given


def encoder(config: Mapping[str, Any], get: GetTensor) -> pixtral.RowEncoder:
    """See `Family`."""
    return pixtral.RowEncoder(config, get)


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> TransformersImageProcessor | None:
    """See `Family`."""
    patch = given(config["vision_config"], "patch_size", default=16)
    return pixtral.image_processor(folder, vision, patch * given(config, "spatial_merge_size", default=2))
