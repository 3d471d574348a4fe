"""ScaledTokens: pictures that keep their shape and become more tokens the larger they are (Qwen2-VL and successors).

Source: the arithmetic of transformers' `smart_resize` in `image_processing_qwen2_vl.py`, which a test compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, sqrt

from .config_reader import ConfigReader
from .vision import ImageCost

MAX_RATIO = 200  # of the longer side to the shorter
MARKS = 2  # before and after a picture; chat templates write them
# Where an image processor's configuration has no such keys.
DEFAULT_PIXELS = (56 * 56, 28 * 28 * 1280)
DEFAULT_PATCHES = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}


@dataclass(frozen=True, slots=True)
class ScaledTokens:
    """A token is a square of `side` pixels. Pictures are scaled to multiples of it on both sides, and such that they
    have between `min_pixels` and `max_pixels` (thin ones may have more)."""

    side: int
    min_pixels: int
    max_pixels: int

    @property
    def least(self) -> int:
        """See `vision.ImageTokens`. No picture has fewer; where the limits are close, perhaps none has as few."""
        # what is shrunk to whole tokens may lose nearly half: of two rows one is left
        return min(ceil(self.min_pixels / self.side**2), max(1, self.max_pixels // self.side**2 // 2))

    @property
    def most(self) -> int:
        """See `vision.ImageTokens`."""
        larger = self.max_pixels // self.side**2
        if larger < MAX_RATIO:  # the thinnest have one row, however many columns that leaves
            larger = floor(sqrt(MAX_RATIO * self.max_pixels) / self.side)
        # What was scaled up: with so many rows, of the thinnest pictures that have them.
        side = sqrt(self.min_pixels) / self.side
        smaller = max(
            rows * ceil(side * min(sqrt(MAX_RATIO), side / (rows - 1) if rows > 1 else sqrt(MAX_RATIO)))
            for rows in range(1, ceil(side) + 1)
        )
        return max(larger, smaller)

    @property
    def costliest(self) -> ImageCost:
        """See `vision.ImageTokens`."""
        return ImageCost((self.most,), MARKS)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens of a picture of so many pixels. Raises ValueError for one that is too thin."""
        if max(width, height) > MAX_RATIO * min(width, height):
            raise ValueError(
                f"an image of {width} x {height} pixels is too thin: the model takes those whose longer side is at "
                f"most {MAX_RATIO} times the shorter"
            )
        rows, columns = round(height / self.side), round(width / self.side)
        pixels = rows * columns * self.side**2
        if pixels > self.max_pixels:
            shrink = sqrt(height * width / self.max_pixels)
            return max(1, floor(height / shrink / self.side)), max(1, floor(width / shrink / self.side))
        if pixels < self.min_pixels:
            grow = sqrt(self.min_pixels / (height * width))
            return ceil(height * grow / self.side), ceil(width * grow / self.side)
        return rows, columns

    def __call__(self, width: int, height: int) -> ImageCost:
        """See `vision.ImageTokens`."""
        rows, columns = self.grid(width, height)
        return ImageCost((rows * columns,), MARKS)


def read_scaled_tokens(
    preprocessor: ConfigReader | None, patches: Mapping[str, int], published: tuple[int, int]
) -> ScaledTokens:
    """For a tower that makes one token of merge_size x merge_size patches. patches: the tower's, under the keys of
    DEFAULT_PATCHES. published: fewest and most tokens of the published checkpoints, for a folder that does not say how
    pictures are prepared. Raises ValueError."""
    side = patches["patch_size"] * patches["merge_size"]
    if preprocessor is None:
        return ScaledTokens(side, *(tokens * side**2 for tokens in published))
    for name, default in DEFAULT_PATCHES.items():
        if (value := preprocessor.get(name, default)) != patches[name]:
            raise preprocessor.error(name, value, f"the vision tower's {patches[name]}")
    preprocessor.refuse("do_resize", (True,), "images of any size must be scaled to whole patches")
    size = preprocessor.reader("size") if "size" in preprocessor else None

    def limit(key: str, edge: str, default: int) -> int:
        if key in preprocessor or size is None:
            return preprocessor.integer(key, default)
        return size.integer(edge)

    least = limit("min_pixels", "shortest_edge", DEFAULT_PIXELS[0])
    most = limit("max_pixels", "longest_edge", DEFAULT_PIXELS[1])
    if not max(least, side**2) <= most:
        raise preprocessor.error("max_pixels", most, f"at least min_pixels ({least}) and one token's {side**2}")
    return ScaledTokens(side, least, most)
