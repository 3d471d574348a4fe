"""Vision: what sees images, as frozen data: tensors of tower and projector, and how many embeddings a picture becomes.

No computation is known here: encoders have it.
"""

from dataclasses import dataclass
from typing import Protocol

from .parts import Shapes

TABLES = ("position_embedding.weight", "pos_embed.weight")


class ImageTokens(Protocol):
    """How many embeddings a picture becomes."""

    @property
    def least(self) -> int:
        """Of the smallest entry of the encoder pool that any picture makes."""
        ...

    @property
    def most(self) -> int:
        """Of the largest one."""
        ...

    def __call__(self, width: int, height: int) -> int:
        """Of a picture of so many pixels, all its entries together. Raises ValueError for one that the model cannot be
        shown."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """Every picture becomes as many."""

    most: int

    @property
    def least(self) -> int:
        return self.most

    def __call__(self, width: int, height: int) -> int:
        del width, height
        return self.most


@dataclass(frozen=True, slots=True)
class Vision:
    """tensors: under the names that transformers' modules give their parameters. width: elements of an embedding.

    bidirectional: tokens of an image also see its later ones, in layers of every kind; a window limits what they see
    before them.
    """

    tensors: Shapes
    image_token_id: int  # in whose place embeddings go
    tokens: ImageTokens
    width: int
    bidirectional: bool = False

    def lora_targets(self) -> Shapes:
        """Module name -> [out, in] of every projection that a LoRA adapter may change; tables of positions are none."""
        return {
            name.removesuffix(".weight"): shape
            for name, shape in self.tensors.items()
            if name.endswith(".weight") and not name.endswith(TABLES) and len(shape) == 2
        }
