"""A user's picture becomes the array a vision tower reads: RGB, square, resized, in [-1, 1].

Knows Pillow and numpy; knows neither torch nor any model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

WHITE = (255, 255, 255)
MAX_SQUARE = 8_000  # pixels per side of a padded picture; a long thin one would take gigabytes


def to_rgb(image: Image.Image) -> Image.Image:
    """The picture in RGB; transparent parts are laid over white. An RGB picture is returned as it is."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        canvas = Image.new("RGBA", rgba.size, (*WHITE, 255))
        return Image.alpha_composite(canvas, rgba).convert("RGB")
    return image.convert("RGB")


def pad_to_square(image: Image.Image) -> Image.Image:
    """An RGB picture centred on the smallest white square that holds it; a square picture is returned as it is. One
    that needs a square of more than MAX_SQUARE is shrunk first."""
    width, height = image.size
    if width == height:
        return image
    side = max(width, height)
    if side > MAX_SQUARE:
        width, height = (max(1, round(length * MAX_SQUARE / side)) for length in (width, height))
        image, side = image.resize((width, height), Image.Resampling.BICUBIC), MAX_SQUARE
    canvas = Image.new("RGB", (side, side), WHITE)
    canvas.paste(image, ((side - width) // 2, (side - height) // 2))
    return canvas


def resize_square(image: Image.Image, size: int) -> Image.Image:
    """A square picture at `size` x `size` pixels, antialiased bicubic; the right size is returned as it is."""
    if image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BICUBIC)


def preprocess(image: Image.Image, size: int) -> NDArray[np.float32]:
    """Turn any Pillow picture into float32 pixel values [3, size, size], where 0 is -1 and 255 is 1.

    Aspect ratio is kept by padding with white. An RGB picture of `size` x `size` keeps every pixel exactly.
    Raises ValueError when `size` is not positive or the picture is empty.
    """
    if size < 1:
        raise ValueError(f"size must be positive, got {size!r}")
    if image.width < 1 or image.height < 1:
        raise ValueError(f"the picture is empty: {image.width} x {image.height} pixels")
    square = resize_square(pad_to_square(to_rgb(image)), size)
    return to_pixel_values(np.asarray(square, dtype=np.uint8))


def to_pixel_values(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bytes [..., H, W, 3] as float32 [..., 3, H, W] in [-1, 1]."""
    values = pixels.astype(np.float32) / np.float32(127.5) - np.float32(1.0)
    return np.ascontiguousarray(np.moveaxis(values, -1, -3))
