"""AnyresTokens: pictures of any shape on the best of a few grids of tiles, and once more in one tile; what pads them
is no token (LLaVA-NeXT).

Source: the arithmetic of transformers' `processing_llava_next.py`, which a test compares.
"""

from dataclasses import dataclass

from .config_reader import ConfigReader
from .vision import ImageCost

PINPOINTS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


@dataclass(frozen=True, slots=True)
class AnyresTokens:
    """pinpoints: grids, as pixels of height and width. A tile has `tile` pixels and `per_side` tokens per side; a line
    of a grid has one more at its end."""

    pinpoints: tuple[tuple[int, int], ...]
    tile: int
    per_side: int

    @property
    def least(self) -> int:
        """See `vision.ImageTokens`. No picture has fewer; where grids are of few tokens, perhaps none has as few."""
        # of the thinnest pictures nothing is left on an even number of lines, else the middle one
        grids = [self._grid(*pinpoint) for pinpoint in self.pinpoints]
        return self.per_side**2 + min(
            min(rows % 2 * (columns + 1), rows * (columns % 2 + 1)) for rows, columns in grids
        )

    @property
    def most(self) -> int:
        """See `vision.ImageTokens`."""
        grids = (self._grid(*pinpoint) for pinpoint in self.pinpoints)
        return self.per_side**2 + max(rows * (columns + 1) for rows, columns in grids)

    @property
    def costliest(self) -> ImageCost:
        """See `vision.ImageTokens`."""
        return ImageCost((self.most,))

    def __call__(self, width: int, height: int) -> ImageCost:
        """See `vision.ImageTokens`."""
        rows, columns = self._grid(*self._best(width, height))
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        return ImageCost((self.per_side**2 + rows * (columns + 1),))

    def _best(self, width: int, height: int) -> tuple[int, int]:
        """The grid on which most pixels of the picture are left, of several the smallest."""

        def left(pinpoint: tuple[int, int]) -> int:
            scale = min(pinpoint[1] / width, pinpoint[0] / height)
            return min(int(width * scale) * int(height * scale), width * height)

        return max(self.pinpoints, key=lambda pinpoint: (left(pinpoint), -pinpoint[0] * pinpoint[1]))

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens, without those at the ends of lines."""
        return height // self.tile * self.per_side, width // self.tile * self.per_side


def read_anyres_tokens(
    config: ConfigReader, preprocessor: ConfigReader | None, tile: int, per_side: int
) -> AnyresTokens:
    """config: of the whole, which must name the grids that the image processor's names. Raises ValueError."""
    pinpoints = _pinpoints(config, tile)
    if preprocessor is not None and _pinpoints(preprocessor, tile) != pinpoints:
        found = preprocessor.get("image_grid_pinpoints")
        raise preprocessor.error("image_grid_pinpoints", found, "those of config.json")
    return AnyresTokens(pinpoints, tile, per_side)


def _pinpoints(config: ConfigReader, tile: int) -> tuple[tuple[int, int], ...]:
    key = "image_grid_pinpoints"
    pairs = config.entries(key, default=list(PINPOINTS))
    for pair in pairs:
        sides = pair if isinstance(pair, list | tuple) and len(pair) == 2 else ()
        if not sides or not all(type(side) is int and side >= tile and side % tile == 0 for side in sides):
            raise config.error(key, pair, f"pairs of multiples of {tile}, the pixels per side of the vision tower")
    if not pairs:
        raise config.error(key, pairs, "a list that is not empty")
    return tuple((height, width) for height, width in pairs)
