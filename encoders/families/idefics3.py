"""Idefics 3: a picture as rows of tiles with a mark before each, then the whole of it.
Source: transformers' `processing_idefics3.py`."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ..inputs import Arrays, VisionFacts
from ..transformers_encoder import TransformersEncoder
from ..transformers_processor import Expansion, TransformersImageProcessor, load_image_processor
from . import GetTensor

AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"


def encoder(config: Mapping[str, Any], get: GetTensor) -> TransformersEncoder:
    """See `Family`."""
    return TransformersEncoder(config, get)


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> TransformersImageProcessor | None:
    """See `Family`. Every tile is an entry."""
    del config
    processor = load_image_processor(folder)
    if processor is None:
        return None
    image, run = vision.image_token_id, (vision.tokens.most,)

    def expand(features: Arrays) -> Expansion:
        [tiles], [[rows]], [[columns]] = (features[name] for name in ("pixel_values", "rows", "cols"))
        zeros = features["byte_values"][0] == 0  # [channels, 256]
        if any(all(is_zero[pixels].all() for is_zero, pixels in zip(zeros, tile)) for tile in tiles):
            raise ValueError("a part of the image becomes zeros only, which the model would take for no image")
        parts: list[str | int] = []
        for row, column in product(range(rows), range(columns)):
            line = "\n" if row and not column else ""
            parts += [f"{line}{AROUND}<row_{row + 1}_col_{column + 1}>", image]
        lines = "\n\n" if rows else ""
        parts += [f"{lines}{AROUND}{WHOLE}", image, AROUND]
        return Expansion(tuple(parts), [({"pixel_values": tile[None, None]}, run) for tile in tiles])

    return TransformersImageProcessor(processor, expand, image, return_row_col_info=True)
