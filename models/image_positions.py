"""ImagePositions: where every token of a text with images stands for ropes that know three positions (mrope).

Numpy only. Knows where images lie and how large they are; neither requests nor rows.

Source: Qwen2-VL (Wang et al. 2024) and transformers' `get_rope_index`, for images that stand still. All three positions
of a text token are the same. Tokens of an image that begins at position p stand at (p, p + row, p + column); the token
after it at p + the longer side. So an image of r x c tokens takes max(r, c) positions, never more than it has tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImagePositions:
    """The images of one text, at least one, in order."""

    offsets: Ints  # [n] first token of each
    columns: Ints  # [n] tokens per row
    ends: Ints  # [n] behind its last token
    shifts: Ints  # [n + 1] at most 0: what is added to the index of a text token behind so many images

    @classmethod
    def of(cls, offsets: Sequence[int], grids: Sequence[tuple[int, int]]) -> "ImagePositions":
        """grids: rows and columns of tokens, row after row without any other token between them."""
        starts, (rows, columns) = np.array(offsets, dtype=np.int64), np.array(grids, dtype=np.int64).T
        ends = starts + rows * columns
        assert len(starts) == len(ends) > 0 and (ends[:-1] <= starts[1:]).all(), "images overlap, or there are none"
        shifts = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(np.maximum(rows, columns) - rows * columns, out=shifts[1:])
        return cls(starts, columns, ends, shifts)

    @property
    def end(self) -> int:
        """Behind the last image. From there on a token stands at its index + `shift`, in all three."""
        return int(self.ends[-1])

    @property
    def shift(self) -> int:
        """At most 0, see `end`."""
        return int(self.shifts[-1])

    def at(self, first: int, count: int) -> Ints:
        """[3, count]: time, height and width of tokens first .. first + count - 1."""
        tokens = np.arange(first, first + count)
        begun = np.searchsorted(self.offsets, tokens, side="right")  # images that have, up to each token
        image = np.maximum(begun - 1, 0)
        inside = (begun > 0) & (tokens < self.ends[image])
        positions = np.tile(tokens + self.shifts[begun], (3, 1))
        image, tokens = image[inside], tokens[inside]
        row, column = np.divmod(tokens - self.offsets[image], self.columns[image])
        start = self.offsets[image] + self.shifts[image]
        positions[:, inside] = start, start + row, start + column
        return positions
