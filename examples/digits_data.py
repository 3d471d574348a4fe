"""Real handwritten digits (scikit-learn's `load_digits`, 8 x 8 pixels) as pictures, split once into two parts.

Source: UCI ML hand-written digits, E. Alpaydin and C. Kaynak, 1998; shipped with scikit-learn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SPLIT_SEED = 20240917
NUM_HELD_OUT = 360  # of 1797


@dataclass(frozen=True, slots=True)
class Digits:
    """Ink [n, 8, 8] from 0 (paper) to 255 (ink), and the digits [n] they show."""

    ink: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@cache
def load_split() -> tuple[Digits, Digits]:
    """(training part, held-out part), the same on every machine. Needs scikit-learn."""
    from sklearn.datasets import load_digits

    data = load_digits()
    ink = np.minimum(data.images * 16, 255).astype(np.uint8)
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    held_out, train = order[:NUM_HELD_OUT], order[NUM_HELD_OUT:]
    return Digits(ink[train], labels[train]), Digits(ink[held_out], labels[held_out])


def draw_digit(
    rng: random.Random, ink: NDArray[np.uint8], side: int, plain: bool = False, warp: bool = False
) -> Image.Image:
    """The digit as an RGB picture of side x side pixels.

    Ink, paper, size, place and slant vary with `rng`; a plain one is black on white, in the middle. Training draws
    with `warp`: 1437 digits are few, so they are also stretched, sheared, and made thicker or thinner.
    """
    paper, pen = (255, 255, 255), (0, 0, 0)
    glyph = round(0.8 * side)
    x = y = (side - glyph) // 2
    if not plain:
        light = _tone(rng, 215, 255)
        dark = _tone(rng, 0, 60)
        if rng.random() < 0.3:
            dark = (rng.randint(0, 140), rng.randint(0, 90), rng.randint(0, 140))
        paper, pen = (light, dark) if rng.random() < 0.6 else (dark, light)
        glyph = round(side * rng.uniform(0.65, 1.0))
        x, y = rng.randint(0, side - glyph), rng.randint(0, side - glyph)
    mask = Image.fromarray(ink).resize((glyph, glyph), Image.Resampling.BICUBIC)
    if warp:
        mask = _warp(rng, mask)
    if not plain:
        mask = mask.rotate(rng.uniform(-8, 8), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (side, side), paper)
    canvas.paste(pen, (x, y, x + glyph, y + glyph), mask)
    return canvas


def _warp(rng: random.Random, mask: Image.Image) -> Image.Image:
    """Stretch and shear the ink about its middle, then change how dark half-tones are."""
    middle = mask.width / 2
    a, d = rng.uniform(0.85, 1.2), rng.uniform(0.85, 1.2)
    b, e = rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2)
    affine = (a, b, middle * (1 - a - b), e, d, middle * (1 - d - e))
    gamma = 2.0 ** rng.uniform(-0.8, 0.8)
    table = [round(255 * (v / 255) ** gamma) for v in range(256)]
    return mask.transform(mask.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR).point(table)


def _tone(rng: random.Random, low: int, high: int) -> tuple[int, int, int]:
    """A grey between the two, or a slightly coloured tone."""
    if rng.random() < 0.7:
        grey = rng.randint(low, high)
        return grey, grey, grey
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)
