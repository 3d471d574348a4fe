"""A teacher's hints for the vision tower: what lies in each cell of a picture, read off its image tokens.

An auxiliary loss of the training only; nothing of it is in the checkpoint. Without it the tower learns from answers
alone, which takes several times as many of them.
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
# per cell: its figure (nothing, a shape whose centre is here, a digit), its colour, its size; 0 is "nothing"
NUM_CLASSES = (1 + len(SHAPES) + 10, 1 + len(COLOURS), 1 + len(RADII) + 1)


def hints(picture: Picture, cells: int) -> NDArray[np.int64]:
    """What the cells of a cells x cells grid show, [cells * cells, 3] with classes as in NUM_CLASSES."""
    grid = np.zeros((cells, cells, 3), dtype=np.int64)
    if picture.digit is not None:
        grid[..., 0] = 1 + len(SHAPES) + picture.digit  # a digit fills the picture: every cell names it
    if picture.scene is not None:
        for shape in picture.scene.shapes:
            size = 1 + sum(shape.radius >= border for border in RADII)
            figure, colour = 1 + SHAPES.index(shape.kind), 1 + tuple(COLOURS).index(shape.colour)
            grid[int(shape.y * cells), int(shape.x * cells)] = (figure, colour, size)
    return grid.reshape(cells * cells, 3)


class HintHead(nn.Module):
    """Linear readers of image tokens [n, tokens, hidden]; their loss falls as the tokens say what is in their cell."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.reader = nn.Linear(hidden_size, sum(NUM_CLASSES))

    def forward(self, image_embeds: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy against labels [n, tokens, 3], summed over cells and properties, per picture.

        A cell without anything counts a tenth of one with a shape, and a digit's cells a quarter each.
        """
        figure, colour, size = torch.split(self.reader(image_embeds).flatten(0, 1), list(NUM_CLASSES), dim=-1)
        labels = labels.flatten(0, 1)
        weight = (
            torch.ones(len(labels)).masked_fill(labels[:, 0] == 0, 0.1).masked_fill(labels[:, 0] > len(SHAPES), 0.25)
        )
        loss = (F.cross_entropy(figure, labels[:, 0], reduction="none") * weight).sum()
        for logits, target in ((colour, labels[:, 1]), (size, labels[:, 2])):
            loss = loss + F.cross_entropy(logits, target.where(target > 0, -100), reduction="sum")
        return loss / max(1, image_embeds.shape[0])
