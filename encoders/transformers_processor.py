"""TransformersImageProcessor: pictures as the checkpoint's own image processor prepares them, whose numbers are the
standard.

Runs transformers' Pillow variants, which need no torchvision.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .images import MAX_PIXELS, mm_hash
from .inputs import Arrays, EncoderInput, ImageTokens, ProcessedImage

ALONE, WHOLE = "preprocessor_config.json", "processor_config.json"


@dataclass(frozen=True, slots=True)
class Expansion:
    """What one picture becomes: `parts` as in ProcessedImage; for every entry its arrays and its runs of tokens; and
    `grid` as in EncoderInput, where there is one entry."""

    parts: tuple[str | int, ...]
    entries: Sequence[tuple[Arrays, tuple[int, ...]]]
    grid: tuple[int, int] | None = None


# What an image processor gave for one picture -> what the picture becomes
Expand = Callable[[Arrays], Expansion]


class TransformersImageProcessor:
    """See `inputs.ImageProcessor`."""

    def __init__(
        self,
        processor: Any,
        expand: Expand,
        image_token_id: int,
        placeholder_id: int | None = None,
        tokens: ImageTokens | None = None,
        **options: Any,
    ) -> None:
        """processor: from `load_image_processor`. placeholder_id None: the image token itself. tokens: asked first,
        where not every picture can be shown. options: what transformers' processor of the whole model tells that of
        images."""
        self.image_token_id = image_token_id
        self.placeholder_id = image_token_id if placeholder_id is None else placeholder_id
        self._processor = processor
        self._expand = expand
        self._tokens = tokens
        self._options = options

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """See `inputs.ImageProcessor`."""
        if self._tokens is None:
            self._refuse_thin(image)
        else:
            self._tokens(*image.size)
        features = self._processor(images=[image], return_tensors="np", **self._options)
        expansion = self._expand({name: np.asarray(values) for name, values in features.items()})
        name, several = mm_hash(image), len(expansion.entries) > 1
        inputs = (
            EncoderInput(f"{name}-{index}" if several else name, arrays, runs, expansion.grid)
            for index, (arrays, runs) in enumerate(expansion.entries)
        )
        return ProcessedImage(expansion.parts, tuple(inputs))

    def _refuse_thin(self, image: Image.Image) -> None:
        """Where the shorter side decides, a thin picture would become an endless one before it is cropped."""
        shortest = getattr(getattr(self._processor, "size", None), "shortest_edge", None)
        longest = getattr(getattr(self._processor, "size", None), "longest_edge", None)
        if not shortest or longest:
            return
        long, short = max(image.size), min(image.size)
        if shortest**2 * long / short > MAX_PIXELS:
            raise ValueError(
                f"an image of {image.width} x {image.height} pixels is too thin: the model reads it with a shorter "
                f"side of {shortest} pixels, and so would need more than {MAX_PIXELS:,}"
            )


def load_image_processor(folder: Path) -> Any:
    """transformers' image processor of a checkpoint folder, in its Pillow variant; None where no file describes it.

    Raises ValueError for one that cannot be read. No code of the checkpoint is ever run.
    """
    if not (folder / ALONE).is_file() and not _in_whole(folder / WHOLE):
        return None
    from transformers import AutoImageProcessor

    auto: Any = AutoImageProcessor
    try:
        return auto.from_pretrained(folder, backend="pil", trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever its files make transformers raise
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"the image processor of {folder} cannot be read: {what}") from None


def _in_whole(file: Path) -> bool:
    """Whether the file describes an image processor; older ones say only what is special about the prompt."""
    try:
        return "image_processor" in json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def square_pixels(features: Arrays, side: int, number: int = 1) -> Arrays:
    """The pixels of one picture, or its tiles, for a tower that reads squares of `side` pixels. Raises ValueError for
    others."""
    pixels = features["pixel_values"]
    if pixels.shape != (number, 3, side, side):
        raise ValueError(
            f"the checkpoint's image processor makes pixels {list(pixels.shape[1:])} of an image, and its vision tower "
            f"reads {[3, side, side]}"
        )
    return {"pixel_values": pixels}
