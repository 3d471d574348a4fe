"""TileTokens: pictures that keep their shape within limits of tokens; larger ones are cut into tiles, often with the
whole once more (LFM2-VL).

Source: the arithmetic of transformers' `image_processing_lfm2_vl.py`, which a test compares.
"""

from dataclasses import dataclass
from math import ceil, floor, sqrt

from .config_reader import ConfigReader
from .vision import ImageCost

MAX_TILES = 100


@dataclass(frozen=True, slots=True)
class TileTokens:
    """A token is a square of `side` pixels, and a patch one of `patch`. A picture becomes between `fewest` and
    `largest` tokens; one of more than `tolerance` times the latter is cut into between tiles[0] and tiles[1] squares of
    `tile` tokens per side; None: none is. thumbnail: after its tiles comes the whole, as if it were not cut.
    """

    patch: int
    side: int
    fewest: int
    largest: int
    tile: int
    tiles: tuple[int, int] | None
    tolerance: float
    thumbnail: bool

    @property
    def least(self) -> int:
        """See `vision.ImageTokens`. No entry has fewer; perhaps none has as few."""
        return min(self.fewest, max(self.largest // 4, 1), *([self.tile**2] if self.tiles else []))

    @property
    def most(self) -> int:
        """See `vision.ImageTokens`."""
        return max(self.largest, self.tile**2) if self.tiles else self.largest

    @property
    def costliest(self) -> ImageCost:
        """See `vision.ImageTokens`. Perhaps no picture takes as much."""
        whole, tiles = (self.largest,), 0 if self.tiles is None else self.tiles[1]
        uncut = ImageCost(whole, 2)
        if tiles < 2:
            return uncut
        cut = ImageCost((self.tile**2,) * tiles + (whole if self.thumbnail else ()), 2 + tiles + self.thumbnail)
        return max(uncut, cut, key=lambda cost: cost.prompt_tokens)

    def __call__(self, width: int, height: int) -> ImageCost:
        """See `vision.ImageTokens`."""
        rows, columns = self.cut(width, height)
        entries = (self.tile**2,) * (rows * columns) if (rows, columns) != (1, 1) else ()
        marks = 2 + len(entries)  # around all, and before each tile
        if not entries or self.thumbnail:
            high, wide = self.whole(width, height)
            marks += bool(entries)
            entries += (high * wide,)
        return ImageCost(entries, marks)

    def whole(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens of a picture that is not cut. Raises ValueError for one that would have too many:
        it is very thin."""
        rows, columns = (max(round(length / self.side), 1) for length in (height, width))
        if rows * columns > self.largest:
            shrink = sqrt(height * width / (self.largest * self.side**2))
            rows, columns = (max(floor(length / shrink / self.side), 1) for length in (height, width))
        elif rows * columns < self.fewest:
            grow = sqrt(self.fewest * self.side**2 / (height * width))
            rows, columns = (ceil(length * grow / self.side) for length in (height, width))
        if rows * columns > self.largest:
            raise ValueError(
                f"an image of {width} x {height} pixels is too thin: it would become {rows} x {columns} tokens, and "
                f"the model takes {self.largest}"
            )
        return rows, columns

    def cut(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; (1, 1): the picture is not cut."""
        pixels = [max(round(length / self.side) * self.side, self.patch) for length in (height, width)]
        most = self.largest * self.side**2 * self.tolerance
        if self.tiles is None or self.tiles == (1, 1) or pixels[0] * pixels[1] <= most:
            return 1, 1
        best, smallest = (1, 1), float("inf")
        for columns, rows in _grids(*self.tiles):
            difference = abs(width / height - columns / rows)
            area = (self.tile * self.side) ** 2 * columns * rows
            if difference < smallest or (difference == smallest and width * height > 0.5 * area):
                best, smallest = (rows, columns), difference
        return best


def _grids(fewest: int, most: int) -> list[tuple[int, int]]:
    """Columns and rows of all grids of so many tiles, smallest first; equally large ones in the order in which a set of
    them has them, as transformers has it: of equally good ones the last is taken."""
    grids = (
        (columns, rows)
        for number in range(fewest, most + 1)
        for columns in range(1, number + 1)
        for rows in range(1, number + 1)
        if fewest <= columns * rows <= most
    )
    return sorted(set(grids), key=lambda grid: grid[0] * grid[1])


def read_tile_tokens(preprocessor: ConfigReader | None, patch: int, factor: int) -> TileTokens:
    """For a tower of which factor x factor patches of `patch` pixels become a token. Raises ValueError."""
    preprocessor = ConfigReader({}) if preprocessor is None else preprocessor
    preprocessor.refuse("encoder_patch_size", (patch,), f"the vision tower has {patch}")
    preprocessor.refuse("downsample_factor", (factor,), f"the model has {factor}")
    side = patch * factor
    fewest = preprocessor.integer("min_image_tokens", 64)
    largest = preprocessor.integer("max_image_tokens", 256)
    if largest < fewest:
        raise preprocessor.error("max_image_tokens", largest, f"at least min_image_tokens ({fewest})")
    tile = preprocessor.integer("tile_size", 512)
    preprocessor.multiple("tile_size", tile, "the pixels per side of a token", side)
    low, high = preprocessor.integer("min_tiles", 2), preprocessor.integer("max_tiles", 10, at_most=MAX_TILES)
    if low > high:
        raise preprocessor.error("max_tiles", high, f"at least min_tiles ({low})")
    cuts = preprocessor.flag("do_image_splitting", True)
    tolerance = preprocessor.positive("max_pixels_tolerance", 2.0)
    thumbnail = preprocessor.flag("use_thumbnail", True)
    return TileTokens(patch, side, fewest, largest, tile // side, (low, high) if cuts else None, tolerance, thumbnail)
