"""Vision: what sees images, as frozen data: tensors of tower and projector, and how many tokens a picture becomes.

No computation is known here: encoders have it.
"""

from dataclasses import dataclass
from typing import Protocol

from .parts import Shapes

TABLES = ("position_embedding.weight", "pos_embed.weight")


@dataclass(frozen=True, slots=True)
class ImageCost:
    """What a picture takes. entries: embeddings of each of its entries in the encoder pool, and tokens of a prompt.

    marks: tokens that a prompt has around and between them, those that published chat templates put there among them;
    line breaks may join text beside them, and then are fewer.
    """

    entries: tuple[int, ...]
    marks: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All together."""
        return sum(self.entries) + self.marks


class ImageTokens(Protocol):
    """How many tokens a picture becomes."""

    @property
    def least(self) -> int:
        """Of the smallest entry of the encoder pool that any picture makes, or fewer."""
        ...

    @property
    def most(self) -> int:
        """Of the largest one, or more."""
        ...

    @property
    def costliest(self) -> ImageCost:
        """Of a picture that takes most."""
        ...

    def __call__(self, width: int, height: int) -> ImageCost:
        """Of a picture of so many pixels. Raises ValueError for one that the model cannot be shown."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTokens:
    """Every picture takes as much. marks: see `ImageCost`."""

    most: int
    marks: int = 0

    @property
    def least(self) -> int:
        return self.most

    @property
    def costliest(self) -> ImageCost:
        return ImageCost((self.most,), self.marks)

    def __call__(self, width: int, height: int) -> ImageCost:
        del width, height
        return self.costliest


@dataclass(frozen=True, slots=True)
class Vision:
    """tensors: under the names that transformers' modules give their parameters.

    bidirectional: tokens of an image also see its later ones, in layers of every kind; a window limits what they see
    before them.
    """

    tensors: Shapes
    image_token_id: int  # in whose place embeddings go
    tokens: ImageTokens
    bidirectional: bool = False

    def lora_targets(self) -> Shapes:
        """Module name -> [out, in] of every projection that a LoRA adapter may change; tables of positions are none."""
        return {
            name.removesuffix(".weight"): shape
            for name, shape in self.tensors.items()
            if name.endswith(".weight") and not name.endswith(TABLES) and len(shape) == 2
        }
