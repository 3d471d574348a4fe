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
# per cell: the shape whose centre is here, its colour, its size; 0 is "none". In the last place: the picture's digit.
NUM_CLASSES = (1 + len(SHAPES), 1 + len(COLOURS), 2 + len(RADII), 11)
UNKNOWN = -100  # what cross_entropy leaves out


def hints(picture: Picture, cells: int) -> NDArray[np.int64]:
    """What a cells x cells grid shows, [cells * cells, 4] with classes as in NUM_CLASSES; the digit in every cell."""
    grid = np.zeros((cells, cells, 4), dtype=np.int64)
    grid[..., 1:3] = UNKNOWN
    if picture.digit is not None:
        grid[..., 0] = UNKNOWN
        grid[..., 3] = 1 + picture.digit
    if picture.scene is not None:
        for shape in picture.scene.shapes:
            size = 1 + sum(shape.radius >= border for border in RADII)
            kind, colour = 1 + SHAPES.index(shape.kind), 1 + tuple(COLOURS).index(shape.colour)
            grid[int(shape.y * cells), int(shape.x * cells), :3] = (kind, colour, size)
    return grid.reshape(cells * cells, 4)


class HintHead(nn.Module):
    """Linear readers of image tokens [n, tokens, hidden]: each token names its cell's shape, their mean the digit."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.reader = nn.Linear(hidden_size, sum(NUM_CLASSES))

    def forward(self, image_embeds: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy against labels [n, tokens, 4], summed over cells and properties, per picture.

        A cell without a shape counts a tenth of one with a shape.
        """
        kind, colour, size, _ = torch.split(self.reader(image_embeds).flatten(0, 1), list(NUM_CLASSES), dim=-1)
        digit = self.reader(image_embeds.mean(dim=1))[:, -NUM_CLASSES[-1] :]
        cells = labels.flatten(0, 1)
        weight = torch.ones(NUM_CLASSES[0])
        weight[0] = 0.1
        loss = F.cross_entropy(kind, cells[:, 0], weight=weight, reduction="sum")
        for logits, target in ((colour, cells[:, 1]), (size, cells[:, 2]), (digit, labels[:, 0, 3])):
            loss = loss + F.cross_entropy(logits, target, reduction="sum")
        return loss / max(1, image_embeds.shape[0])
