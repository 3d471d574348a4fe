"""RowTokens: pictures that keep their shape, as rows of tokens with a mark after each but the last (Pixtral).

Source: the arithmetic of transformers' `image_processing_pil_pixtral.py`, which a test compares.
"""

from dataclasses import dataclass
from math import floor

from .config_reader import ConfigReader
from .vision import ImageCost

MARKS = 1  # after the last row


@dataclass(frozen=True, slots=True)
class RowTokens:
    """A token is a square of `side` pixels. Pictures of more than max_height x max_width pixels are shrunk to that,
    then both sides scaled up to whole tokens. An entry of the encoder pool has an embedding for marks in it as well."""

    side: int
    max_height: int
    max_width: int

    @property
    def least(self) -> int:
        """See `vision.ImageTokens`."""
        return 1

    @property
    def most(self) -> int:
        """See `vision.ImageTokens`."""
        return max(self.costliest.entries)

    @property
    def costliest(self) -> ImageCost:
        """See `vision.ImageTokens`."""
        return self(self.max_width, self.max_height)

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tokens. Raises ValueError for a picture that is too thin."""
        ratio = max(height / self.max_height, width / self.max_width)
        rows, columns = (floor(side / ratio) if ratio > 1 else side for side in (height, width))
        if not rows or not columns:
            raise ValueError(
                f"an image of {width} x {height} pixels is too thin: no pixel is left of its shorter side where it is "
                f"shrunk to the {self.max_width} x {self.max_height} that the model takes"
            )
        return (rows - 1) // self.side + 1, (columns - 1) // self.side + 1

    def __call__(self, width: int, height: int) -> ImageCost:
        """See `vision.ImageTokens`."""
        rows, columns = self.grid(width, height)
        return ImageCost((rows * (columns + 1) - 1,), MARKS)


def read_row_tokens(preprocessor: ConfigReader | None, side: int, published: int) -> RowTokens:
    """published: most pixels per side of the published checkpoints, for a folder that does not say how pictures are
    prepared. Raises ValueError."""
    if preprocessor is None:
        return RowTokens(side, published, published)
    preprocessor.refuse("do_resize", (True,), "images of any size must be scaled to whole patches")
    preprocessor.refuse("do_center_crop", (False,), "images are seen whole")
    size = preprocessor.reader("size") if "size" in preprocessor else ConfigReader({"longest_edge": 1024})
    if "longest_edge" in size:
        longest = size.integer("longest_edge")
        return RowTokens(side, longest, longest)
    return RowTokens(side, size.integer("height"), size.integer("width"))
