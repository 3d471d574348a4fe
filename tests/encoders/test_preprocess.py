"""Preprocessing: exact where nothing needs doing, white where something is missing."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from hybrid.encoders.preprocess import MAX_SQUARE, pad_to_square, preprocess


def test_the_right_size_keeps_every_pixel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    values = preprocess(Image.fromarray(pixels), 8)
    assert values.shape == (3, 8, 8)
    assert values.dtype == np.float32
    assert np.abs(values).max() <= 1
    np.testing.assert_array_equal(np.rint((values + 1) * 127.5).astype(np.uint8).transpose(1, 2, 0), pixels)


def test_a_wide_picture_is_padded_with_white() -> None:
    values = preprocess(Image.new("RGB", (80, 40), (0, 0, 255)), 16)
    np.testing.assert_allclose(values[:, :3], 1.0)
    np.testing.assert_allclose(values[:, -3:], 1.0)
    np.testing.assert_allclose(values[:, 8], np.broadcast_to([[-1.0], [-1.0], [1.0]], (3, 16)))


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (8_001, 2)])
def test_a_long_thin_picture_takes_no_gigabytes(size: tuple[int, int]) -> None:
    square = pad_to_square(Image.new("RGB", size, (0, 0, 255)))
    assert square.size == (MAX_SQUARE, MAX_SQUARE)
    middle = (MAX_SQUARE - 1) // 2
    assert square.getpixel((middle, middle)) == (0, 0, 255)
    assert square.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_is_white(mode: str) -> None:
    np.testing.assert_allclose(preprocess(Image.new(mode, (20, 20)), 8), 1.0)


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    assert preprocess(Image.new("RGB", (9, 5), (200, 10, 10)).convert(mode), 8).shape == (3, 8, 8)


def test_a_bad_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        preprocess(Image.new("RGB", (4, 4)), -1)
