"""A picture in any form is read right, or refused in one sentence."""

import gc
import os
import struct
import warnings
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from hybrid.encoders.images import MAX_PIXELS, load_image, mm_hash

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def halves(mode: str = "RGB") -> Image.Image:
    """20 x 10, red on the left, blue on the right."""
    image = Image.new("RGB", (20, 10), RED)
    image.paste(BLUE, (10, 0, 20, 10))
    return image.convert(mode)


def colour(image: Image.Image, x: int, y: int) -> tuple[int, ...]:
    pixel = image.getpixel((x, y))
    assert isinstance(pixel, tuple)
    return pixel


def close(pixel: tuple[int, ...], expected: tuple[int, ...], by: int = 12) -> bool:
    return all(abs(a - b) <= by for a, b in zip(pixel, expected, strict=True))


def test_path_string_bytes_image_and_array_give_the_same_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    halves().save(path)
    sources: list[Any] = [path, str(path), path.read_bytes(), halves(), np.asarray(halves())]
    pictures = [load_image(source) for source in sources]
    assert all(picture.mode == "RGB" for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_common_formats(kind: str) -> None:
    image = load_image(encoded(halves(), kind))
    assert image.size == (20, 10)
    assert close(colour(image, 2, 5), RED, 40)
    assert close(colour(image, 17, 5), BLUE, 40)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("P", "PNG"), ("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "JPEG"), ("RGBA", "PNG"), ("LAB", "TIFF")],
)
def test_colour_modes(mode: str, kind: str) -> None:
    source = halves("P") if mode == "P" else halves()
    if mode == "LAB":
        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        converted = ImageCms.applyTransform(source, ImageCms.buildTransform(*profiles, "RGB", "LAB"))
        assert converted is not None
        source = converted
    elif mode != "P":
        source = source.convert(mode)
    image = load_image(encoded(source, kind))
    assert close(colour(image, 2, 5), RED, 60)
    assert close(colour(image, 17, 5), BLUE, 60)


def test_grey_bilevel_and_grey_with_alpha() -> None:
    grey = Image.new("L", (4, 4), 100)
    assert colour(load_image(encoded(grey)), 1, 1) == (100, 100, 100)
    assert colour(load_image(encoded(grey.point(lambda _: 255).convert("1"))), 1, 1) == WHITE
    assert colour(load_image(encoded(Image.new("LA", (4, 4), (0, 0)))), 1, 1) == WHITE


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    expected = ramp.astype(np.float64) / 65535 * 255
    for source in (encoded(Image.fromarray(ramp)), encoded(Image.fromarray(ramp), "TIFF"), ramp, Image.fromarray(ramp)):
        values = np.asarray(load_image(source))[:, :, 0].astype(np.float64)
        assert np.abs(values - expected).max() <= 1
    wide = Image.fromarray(ramp.astype(np.int32))
    assert wide.mode == "I"
    assert np.abs(np.asarray(load_image(wide))[:, :, 0] - expected).max() <= 1


def test_transparency_lies_over_white() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert colour(load_image(encoded(image)), 1, 1) == WHITE
    half = load_image(Image.new("RGBA", (4, 4), (0, 0, 0, 128)))
    assert close(colour(half, 1, 1), (127, 127, 127), 2)
    palette = halves().quantize(4)
    palette.info["transparency"] = palette.getpixel((2, 5))
    image = load_image(encoded(palette, transparency=palette.getpixel((2, 5))))
    assert colour(image, 2, 5) == WHITE
    assert close(colour(image, 17, 5), BLUE)


@pytest.mark.parametrize(
    ("orientation", "first"),
    [
        (1, (2, 5)), (2, (17, 5)), (3, (17, 5)), (4, (2, 5)), (5, (5, 2)), (6, (5, 2)), (7, (5, 17)), (8, (5, 17)),
        (9, (2, 5)),
    ],
)  # fmt: skip
def test_exif_rotation_is_applied(orientation: int, first: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = load_image(encoded(halves(), "JPEG", exif=exif.tobytes(), quality=95))
    assert image.size == ((10, 20) if 5 <= orientation <= 8 else (20, 10))
    assert close(colour(image, *first), RED, 40)


def test_exif_tags_that_make_no_sense_do_not_keep_a_picture_from_being_turned() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x011A] = 6, 1.5
    x_resolution, description = struct.pack(">HH", 0x011A, 5), struct.pack(">HH", 0x010E, 5)  # text as a fraction
    assert x_resolution in exif.tobytes()
    image = load_image(encoded(halves(), "JPEG", exif=exif.tobytes().replace(x_resolution, description), quality=95))
    assert image.size == (10, 20)
    assert close(colour(image, 5, 2), RED, 40)


def test_broken_exif_keeps_no_picture_from_being_read() -> None:
    """In a PNG, whose reader tells."""
    data = encoded(halves())
    broken = b"\0\0\0\x07eXIfgarbage" + zlib.crc32(b"eXIfgarbage").to_bytes(4, "big")
    assert colour(load_image(data[:33] + broken + data[33:]), 5, 2) == RED


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in (RED, BLUE)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert close(colour(load_image(data), 3, 3), RED, 40)
    opened = Image.open(BytesIO(data))
    opened.seek(1)
    assert close(colour(load_image(opened), 3, 3), RED, 40)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP"])
def test_no_file_stays_open(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    halves().save(path, kind, save_all=True, append_images=[halves()])
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:60])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_image(path)
        with pytest.raises(ValueError, match="cut"):
            load_image(cut)
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


def bomb(width: int, height: int) -> bytes:
    """A PNG header that promises width x height pixels, and next to no data."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(100_000, 100_000), (9_000, 9_000), (70_000, 1), (2**31 - 1, 2**31 - 1)])
@pytest.mark.filterwarnings("error")
def test_too_many_pixels_are_refused_before_decoding(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="pixels"):
        load_image(bomb(*size))


@pytest.mark.filterwarnings("error")
def test_images_in_memory_have_the_same_limit() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_PIXELS:,} pixels"):
        load_image(Image.new("1", (10_000, 10_000)))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "not an image"),
        (b"hello, this is text", "not an image"),
        (b"\x89PNG\r\n\x1a\n", "image"),
        (b"GIF89a", "image"),
        (b"\xff\xd8\xff\xe0", "image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        ("/nowhere/at all.png", "does not exist"),
        (".", "cannot be opened as an image: it is not a file"),
        ("x" * 5000, "^.{150,300}: File name too long$"),
        (12, "not int"),
        (None, "not NoneType"),
        (Image.new("RGB", (0, 5)), "empty: 0 x 5"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "empty"),
        (np.zeros((4, 4, 2), dtype=np.uint8), r"not \[4, 4, 2\]"),
        (np.zeros(4, dtype=np.uint8), r"not \[4\]"),
        (np.zeros((4, 4), dtype=np.int64), "not int64"),
        (np.full((4, 4), np.nan), "NaN"),
        (np.full((4, 4), 3.0), r"lie in \[0, 1\]"),
        ("with\0nul", "opened"),
    ],
)
def test_what_is_no_picture_is_refused(source: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        load_image(source)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe' cannot be opened as an image: it is not a file"):
        load_image(tmp_path / "pipe")


def test_an_array_is_measured_before_it_is_copied() -> None:
    huge = np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (10**9, 10**9, 3))  # takes 3 bytes itself
    with pytest.raises(ValueError, match="the array has 1000000000 x 1000000000 pixels"):
        load_image(huge)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_truncated_file_is_refused_or_cut_never_a_crash(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    for cut in range(0, len(data) - 1, max(1, len(data) // 40)):
        with pytest.raises(ValueError, match="image data"):
            load_image(data[:cut])


def test_corrupt_bytes_never_raise_anything_but_a_value_error() -> None:
    rng = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM"):
        data = np.frombuffer(encoded(halves(), kind), dtype=np.uint8)
        for _ in range(150):
            broken = data.copy()
            broken[rng.integers(0, len(data), rng.integers(1, 6))] = rng.integers(0, 256)
            try:
                image = load_image(broken.tobytes())
            except ValueError as error:
                assert "\n" not in str(error)  # noqa: PT017
            else:
                assert image.mode == "RGB"


def test_float_arrays_and_single_channels() -> None:
    assert colour(load_image(np.full((3, 3, 3), 0.5)), 1, 1) == (128, 128, 128)
    assert colour(load_image(np.full((3, 3, 1), 255, dtype=np.uint8)), 1, 1) == WHITE
    assert colour(load_image(Image.fromarray(np.full((3, 3), 0.5, dtype=np.float32))), 1, 1) == (128, 128, 128)


def test_the_hash_is_of_pixels_not_of_files() -> None:
    png, bmp = load_image(encoded(halves(), "PNG")), load_image(encoded(halves(), "BMP"))
    assert mm_hash(png) == mm_hash(bmp)
    other = halves()
    other.putpixel((0, 0), (254, 0, 0))
    assert mm_hash(other) != mm_hash(png)
    assert mm_hash(Image.new("RGB", (2, 8))) != mm_hash(Image.new("RGB", (8, 2)))
