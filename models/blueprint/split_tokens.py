"""SplitTokens: pictures that are cut into tiles of one size, with the whole in one more tile (Idefics 3, SmolVLM).

Source: the arithmetic of transformers' `image_processing_pil_idefics3.py`, which a test compares.
"""

from dataclasses import dataclass
from math import ceil

from .config_reader import ConfigReader
from .vision import ImageCost

MAX_SIDE = 4096  # of a picture, before it is cut
TILE = 364  # where an image processor's configuration has no such key


@dataclass(frozen=True, slots=True)
class SplitTokens:
    """Every tile becomes `most` tokens, and is an entry of the encoder pool. longest_edge: pixels to which the longer
    side is scaled before a picture is cut into tiles of `tile` pixels per side; None: pictures are not cut."""

    most: int
    tile: int
    longest_edge: int | None

    @property
    def least(self) -> int:
        """See `vision.ImageTokens`."""
        return self.most

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; (0, 0): the picture is one tile by itself."""
        if self.longest_edge is None:
            return 0, 0
        width, height = _scaled(width, height, self.longest_edge, even=True)
        if max(width, height) > MAX_SIDE:
            width, height = _scaled(width, height, MAX_SIDE)
        # the longer side to whole tiles, then the shorter after it
        longer = ceil(max(width, height) / self.tile) * self.tile
        rows, columns = (ceil(side / self.tile) for side in reversed(_scaled(width, height, longer)))
        return (rows, columns) if max(rows, columns) > 1 else (0, 0)

    @property
    def costliest(self) -> ImageCost:
        """See `vision.ImageTokens`."""
        return self(self.tile, self.tile)  # whatever its size, a square has most tiles

    def __call__(self, width: int, height: int) -> ImageCost:
        """See `vision.ImageTokens`."""
        rows, columns = self.grid(width, height)
        tiles = rows * columns
        # two before each tile, a line break after each row, three around the whole
        return ImageCost((self.most,) * (tiles + 1), 2 * tiles + rows + 3)


def _scaled(width: int, height: int, longer: int, even: bool = False) -> tuple[int, int]:
    """Width and height, of which the longer is `longer` and the other in proportion. even: that one is rounded up."""
    ratio = width / height
    shorter = int(longer / ratio if width >= height else longer * ratio)
    shorter = max(shorter + (shorter % 2 if even else 0), 1)
    return (longer, shorter) if width >= height else (shorter, longer)


def read_split_tokens(preprocessor: ConfigReader | None, patch_size: int, scale: int, published: int) -> SplitTokens:
    """For a tower of which scale x scale patches become a token. published: pixels per side of its pictures, for a
    folder that does not say how they are prepared. Raises ValueError."""
    default = TILE
    if preprocessor is None:
        preprocessor, default = ConfigReader({}), published
    preprocessor.refuse("do_resize", (True,), "pictures must be scaled to whole tiles")
    tile = default
    if "max_image_size" in preprocessor:
        tile = preprocessor.reader("max_image_size").integer("longest_edge", at_least=patch_size, at_most=MAX_SIDE)
    per_side = tile // patch_size
    if per_side % scale:
        raise ValueError(
            f"config.scale_factor {scale} does not divide the {per_side} patches of {patch_size} pixels that a side of "
            f"{tile} pixels has"
        )
    longest = 4 * default
    if "size" in preprocessor:
        longest = preprocessor.reader("size").integer("longest_edge")
    cut = preprocessor.flag("do_image_splitting", True)
    return SplitTokens((per_side // scale) ** 2, tile, longest if cut else None)
