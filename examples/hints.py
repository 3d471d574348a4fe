"""A teacher's hints for the vision tower: what a picture shows and where, read off its image tokens.

An auxiliary loss of the training only; nothing of it is in the checkpoint. Without it the tower learns from answers
alone, which takes many times as many of them.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from .conversations import Picture
from .tiny_world import COLOURS, SHAPES

RADII = (0.11, 0.15, 0.2)  # borders between classes of size
STRIPES = 10  # places along one axis
# per cell: the shape whose centre is here (0: none), its colour, its size, its column, its row; and the picture's digit
NUM_CLASSES = (1 + len(SHAPES), len(COLOURS), 1 + len(RADII), STRIPES, STRIPES, 10)
UNKNOWN = -100  # what cross_entropy leaves out


def hints(picture: Picture, cells: int) -> NDArray[np.int64]:
    """What a cells x cells grid shows, [cells * cells, 6] with classes as in NUM_CLASSES; the digit in every cell."""
    grid = np.full((cells, cells, len(NUM_CLASSES)), UNKNOWN, dtype=np.int64)
    if picture.digit is not None:
        grid[..., -1] = picture.digit
    if picture.scene is not None:
        grid[..., 0] = 0
        for shape in picture.scene.shapes:
            grid[int(shape.y * cells), int(shape.x * cells), :-1] = (
                1 + SHAPES.index(shape.kind),
                tuple(COLOURS).index(shape.colour),
                sum(shape.radius >= border for border in RADII),
                int(shape.x * STRIPES),
                int(shape.y * STRIPES),
            )
    return grid.reshape(cells * cells, len(NUM_CLASSES))


class HintHead(nn.Module):
    """Linear readers of image tokens [n, tokens, hidden]: each token names its cell's shape, their mean the digit."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.reader = nn.Linear(hidden_size, sum(NUM_CLASSES))

    def forward(self, image_embeds: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy against labels [n, tokens, 6], summed over cells and properties, per picture.

        A cell without a shape counts a tenth of one with a shape.
        """
        cells = torch.split(self.reader(image_embeds).flatten(0, 1), list(NUM_CLASSES), dim=-1)
        digit = self.reader(image_embeds.mean(dim=1))[:, -NUM_CLASSES[-1] :]
        weight = torch.ones(NUM_CLASSES[0])
        weight[0] = 0.1
        loss = F.cross_entropy(digit, labels[:, 0, -1], reduction="sum")
        for i, logits in enumerate(cells[:-1]):
            target = labels[..., i].flatten()
            loss = loss + F.cross_entropy(logits, target, weight=weight if i == 0 else None, reduction="sum")
        return loss / max(1, image_embeds.shape[0])
