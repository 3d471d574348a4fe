"""Images as users send them -> RGB pictures that are safe to preprocess, and the hash under which they are cached.

Knows Pillow and numpy. A picture is either read right or refused in one ValueError sentence.
"""

import struct
import zlib
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from .preprocess import to_rgb

MAX_PIXELS = 64_000_000  # refused before decoding: 8,000 x 8,000
MAX_SIDE = 65_500
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")

# What Pillow's decoders raise on broken files; warnings where a program has made them errors.
_BROKEN = (
    OSError, ValueError, SyntaxError, LookupError, TypeError, EOFError, OverflowError, MemoryError, struct.error,
    zlib.error, Image.DecompressionBombError, Warning,
)  # fmt: skip

# What makes a picture upright, by its EXIF orientation; 1 is upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

ImageSource = str | Path | bytes | Image.Image | NDArray[np.generic]


def load_image(source: ImageSource) -> Image.Image:
    """An RGB picture, upright (EXIF), the first frame of an animation, transparency over white.

    source: a path, an encoded file's bytes, a Pillow image, or an array [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] of
    uint8, uint16 (full range) or floats in [0, 1]. Raises ValueError for what is no picture, is truncated, has no
    pixels, or has more than MAX_PIXELS.
    """
    if isinstance(source, np.ndarray):
        return _to_rgb(_from_array(source), "the array")
    if isinstance(source, Image.Image):
        return _to_rgb(source, "the image")
    file: BytesIO | Path
    if isinstance(source, bytes | bytearray):
        file, name = BytesIO(source), "the image data"
    elif isinstance(source, str | Path):
        file, name = Path(source), _brief(str(source))
    else:
        raise ValueError(f"an image must be a path, bytes, a Pillow image or an array, not {type(source).__name__}")
    with _open(file, name) as image:  # Pillow keeps the file of an animation open for its later frames
        return _to_rgb(image, name)


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of an encoded picture, of which only the header is read. Raises ValueError for what is no
    picture, or one that `load_image` refuses for its size."""
    name = "the image data"
    with _open(BytesIO(data), name) as image:
        _check_size(*image.size, name)
        return image.size


def mm_hash(image: Image.Image) -> str:
    """Content hash of an RGB picture: pictures with equal pixels share their embeddings."""
    digest = blake2b(repr(image.size).encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()


def _open(file: BytesIO | Path, name: str) -> Image.Image:
    """Read the header only. A path must be a regular file: a pipe could keep us waiting for ever."""
    try:
        if isinstance(file, Path) and file.exists() and not file.is_file():
            raise OSError("it is not a file")
        return Image.open(file, formats=FORMATS)
    except FileNotFoundError:
        raise ValueError(f"{name} does not exist") from None
    except UnidentifiedImageError:
        raise ValueError(f"{name} is not an image in a supported format ({', '.join(FORMATS)})") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name} has too many pixels: {_one_line(error)}") from None
    except _BROKEN as error:
        raise ValueError(f"{name} cannot be opened as an image: {_one_line(error)}") from None


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Decode. Mutates `image`: it stands at its first frame, also after a caller looked at later ones."""
    _check_size(*image.size, name)
    try:
        image.seek(0)
        image.load()
        return to_rgb(_to_8_bit(_upright(image)))
    except _BROKEN as error:
        raise ValueError(f"{name} cannot be decoded: {_one_line(error)}") from None


def _brief(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:150]}...{path[-40:]}")


def _one_line(error: BaseException) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)  # without the path again
    return " ".join(said.split()) or type(error).__name__


def _check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise ValueError(f"{name} is empty: {width} x {height} pixels")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise ValueError(
            f"{name} has {width} x {height} pixels; at most {MAX_PIXELS:,} pixels and {MAX_SIDE:,} per side are read"
        )


def _upright(image: Image.Image) -> Image.Image:
    """A copy. ImageOps.exif_transpose would also write the EXIF data anew, and fail on tags that nobody asked for."""
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except _BROKEN:  # what cannot be read turns nothing
        turn = None
    return image.copy() if turn is None else image.transpose(turn)


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Pictures of 16-bit, 32-bit and float samples scaled to 8 bits; Pillow itself would clip them to white."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) * 255 // 65535).astype(np.uint8))
    if image.mode == "I":  # 16-bit samples in 32, as Pillow opens some PNG and TIFF files
        values = np.asarray(image).clip(0, 65535).astype(np.uint32)
        return Image.fromarray((values * 255 // 65535 if values.max() > 255 else values).astype(np.uint8))
    if image.mode == "F":
        return Image.fromarray(_floats_to_8_bit(np.asarray(image)))
    return image


def _floats_to_8_bit(values: NDArray[Any]) -> NDArray[np.uint8]:
    if not np.isfinite(values).all():
        raise ValueError("some values are NaN or infinite")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"float values must lie in [0, 1], got {values.min():g} .. {values.max():g}")
    return (values * 255 + 0.5).astype(np.uint8)


def _from_array(array: NDArray[np.generic]) -> Image.Image:
    shape = array.shape
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        raise ValueError(f"an image array must be [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], not {list(shape)}")
    if 0 in shape:
        raise ValueError(f"the array is empty: {list(shape)}")
    _check_size(shape[1], shape[0], "the array")  # before copies of it are made
    if len(shape) == 3 and shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype == np.uint8:
        values = array
    elif array.dtype == np.uint16:
        values = (array.astype(np.uint32) * 255 // 65535).astype(np.uint8)
    elif array.dtype.kind == "f":
        values = _floats_to_8_bit(array)
    else:
        raise ValueError(f"an image array must be uint8, uint16 or floats in [0, 1], not {array.dtype}")
    return Image.fromarray(np.ascontiguousarray(values))
