"""TransformersImageProcessor: pictures as the checkpoint's own image processor prepares them, whose numbers are the
standard, and are looked up only when the tower runs.

Runs transformers' Pillow variants, which need no torchvision.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .images import MAX_PIXELS, mm_hash
from .inputs import Arrays, EncoderInput, ImageTokens, ProcessedImage
from .processor_files import image_keys


@dataclass(frozen=True, slots=True)
class Expansion:
    """What one picture becomes: `parts` as in ProcessedImage; for every entry its arrays and its runs of tokens."""

    parts: tuple[str | int, ...]
    entries: Sequence[tuple[Arrays, tuple[int, ...]]]


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
        self._byte_values = byte_values(processor)

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """See `inputs.ImageProcessor`."""
        if self._tokens is None:
            self._refuse_thin(image)
        else:
            self._tokens(*image.size)
        found = self._processor(
            images=[image], return_tensors="np", do_rescale=False, do_normalize=False, **self._options
        )
        features = {name: np.asarray(values) for name, values in found.items()}
        features["pixel_values"] = features["pixel_values"].astype(np.uint8)
        expansion = self._expand({**features, "byte_values": self._byte_values})
        name, several = mm_hash(image), len(expansion.entries) > 1
        inputs = (
            EncoderInput(f"{name}-{index}" if several else name, {**arrays, "byte_values": self._byte_values}, runs)
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
    if image_keys(folder) is None:
        return None
    from transformers import AutoImageProcessor

    auto: Any = AutoImageProcessor
    try:
        return auto.from_pretrained(folder, backend="pil", trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever its files make transformers raise
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"the image processor of {folder} cannot be read: {what}") from None


def byte_values(processor: Any) -> NDArray[np.float32]:
    """[1, channels, 256]: what transformers' image processor makes of every byte. Pixels are kept as bytes until their
    request ends, a quarter of what the tower reads, and looked up when it runs. Raises ValueError."""
    values = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
    if processor.do_rescale:
        values = processor.rescale(values, processor.rescale_factor)
    if processor.do_normalize:
        values = processor.normalize(values, processor.image_mean, processor.image_std)
    return values.astype(np.float32).transpose(1, 0, 2)


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
