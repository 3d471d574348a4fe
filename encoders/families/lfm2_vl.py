"""LFM2-VL: a picture, or its tiles with a mark before each and the whole after them, cut with Pillow: transformers' own
image processor needs torchvision.

Source: transformers' `image_processing_lfm2_vl.py` and `processing_lfm2_vl.py`. How a picture is cut is what the
blueprint counts with (`models.blueprint.tile_tokens`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..images import mm_hash
from ..inputs import EncoderInput, ProcessedImage, VisionFacts
from ..processor_files import image_keys
from ..transformers_encoder import TransformersEncoder
from . import GetTensor, given

START, END, WHOLE = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"


class Layout(Protocol):
    """How pictures are cut; see `models.blueprint.tile_tokens.TileTokens`."""

    @property
    def patch(self) -> int: ...
    @property
    def side(self) -> int: ...
    @property
    def tile(self) -> int: ...
    @property
    def thumbnail(self) -> bool: ...
    def whole(self, width: int, height: int) -> tuple[int, int]: ...
    def cut(self, width: int, height: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class TileProcessor:
    """See `inputs.ImageProcessor`. mean, std: of pixel values 0 .. 255, per channel."""

    image_token_id: int
    layout: Layout
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    resample: Image.Resampling

    @property
    def placeholder_id(self) -> int:
        return self.image_token_id

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """See `inputs.ImageProcessor`."""
        rows, columns = self.layout.cut(*image.size)
        pieces: list[tuple[str, Image.Image]] = []  # with the mark before each
        if (rows, columns) != (1, 1):
            side = self.layout.tile * self.layout.side
            scaled = self._scaled(image, columns * side, rows * side)
            for row, column in product(range(rows), range(columns)):
                box = (column * side, row * side, (column + 1) * side, (row + 1) * side)
                pieces.append((f"<|img_row_{row + 1}_col_{column + 1}|>", scaled.crop(box)))
        if not pieces or self.layout.thumbnail:
            high, wide = self.layout.whole(*image.size)
            whole = self._scaled(image, wide * self.layout.side, high * self.layout.side)
            pieces.append((WHOLE if pieces else "", whole))
        name, parts = mm_hash(image), [part for mark, _ in pieces for part in (mark, self.image_token_id)]
        parts[0] = f"{START}{parts[0]}"
        inputs = tuple(self._input(f"{name}-{index}", piece) for index, (_, piece) in enumerate(pieces))
        return ProcessedImage((*parts, END), inputs)

    def _scaled(self, image: Image.Image, width: int, height: int) -> Image.Image:
        return image.resize((width, height), self.resample)

    def _input(self, name: str, piece: Image.Image) -> EncoderInput:
        patch, side = self.layout.patch, self.layout.side
        rows, columns = piece.height // patch, piece.width // patch
        pixels = (np.asarray(piece, dtype=np.float32) - self.mean) / self.std  # [height, width, channels]
        patches = pixels.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2).reshape(1, rows * columns, -1)
        arrays = {
            "pixel_values": patches,
            "pixel_attention_mask": np.ones((1, rows * columns), dtype=np.int64),
            "spatial_shapes": np.array([[rows, columns]], dtype=np.int64),
        }
        return EncoderInput(name, arrays, ((piece.height // side) * (piece.width // side),))


def encoder(config: Mapping[str, Any], get: GetTensor) -> TransformersEncoder:
    """See `Family`."""
    return TransformersEncoder(config, get)


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> TileProcessor | None:
    """See `Family`."""
    del config
    keys = image_keys(folder)
    if keys is None:
        return None
    layout: Any = vision.tokens
    scale = given(keys, "rescale_factor", default=1 / 255) if given(keys, "do_rescale", default=True) else 1.0
    normal = given(keys, "do_normalize", default=True)
    try:
        mean, std = (
            np.broadcast_to(np.asarray(given(keys, name, default=0.5) if normal else other, dtype=np.float32), 3)
            for name, other in (("image_mean", 0.0), ("image_std", 1.0))
        )
        resample = Image.Resampling(given(keys, "resample", default=Image.Resampling.BILINEAR))
        mean, std = mean / np.float32(scale), std / np.float32(scale)
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
            raise ValueError("numbers must be finite, and image_std and rescale_factor positive")
    except (TypeError, ValueError) as error:
        raise ValueError(f"the image processor of {folder} cannot be read: {error}") from None
    return TileProcessor(vision.image_token_id, layout, mean, std, resample)
