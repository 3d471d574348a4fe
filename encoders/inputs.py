"""What passes between pictures, prompts and encoders: plain data, and what an image processor and an encoder are.

Knows numpy and Pillow; no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    import torch
    from torch import nn

Arrays = Mapping[str, NDArray[Any]]  # by the names under which the encoder reads them


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """One entry of the encoder pool: what the encoder makes embeddings of.

    `mm_hash`: equal hashes mean equal embeddings. `runs`: lengths of its runs of image tokens in a prompt, in order;
    between two runs stands one token of text. The entry covers a prompt from its first run's first token to its last
    run's last, and has an embedding for each of them; those between runs are never read. `grid`: rows and columns of
    tokens, where they are one run and the model's positions follow them (mrope). `lora_id`: the adapter that changes
    how it is seen; 0: none does.
    """

    mm_hash: str
    arrays: Arrays
    runs: tuple[int, ...]
    grid: tuple[int, int] | None = None
    lora_id: int = 0

    def for_adapter(self, lora_id: int) -> EncoderInput:
        """The same for an adapter that changes how pictures are seen, which shares its embeddings with nobody."""
        return replace(self, mm_hash=f"{self.mm_hash}@{lora_id}", lora_id=lora_id)


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """A picture, ready for prompt and encoder.

    `parts` replace its placeholder in a prompt: texts, and token ids, of which the image token stands once for every
    run of `inputs`, in order.
    """

    parts: tuple[str | int, ...]
    inputs: tuple[EncoderInput, ...]


class ImageCost(Protocol):
    """What a picture takes."""

    @property
    def entries(self) -> tuple[int, ...]:
        """Embeddings of each of its inputs."""
        ...


class ImageTokens(Protocol):
    """How many embeddings a picture becomes."""

    @property
    def most(self) -> int:
        """Of any input; of each, where all have as many."""
        ...

    def __call__(self, width: int, height: int) -> ImageCost:
        """Raises ValueError for a picture that the model cannot be shown."""
        ...


class VisionFacts(Protocol):
    """What a model's blueprint says of its images."""

    @property
    def image_token_id(self) -> int: ...

    @property
    def tokens(self) -> ImageTokens: ...


class ImageProcessor(Protocol):
    """Makes pictures ready for one model. Thread-safe."""

    @property
    def placeholder_id(self) -> int:
        """The token that a prompt has where a picture belongs."""
        ...

    @property
    def image_token_id(self) -> int:
        """The token in whose place embeddings go."""
        ...

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """image: RGB, as `load_image` gives it. Raises ValueError for one that the model cannot be shown."""
        ...


class Encoder(Protocol):
    """A vision tower with its projector."""

    @property
    def projections(self) -> Mapping[str, nn.Linear]:
        """Every module that a LoRA adapter may change, by its name in the blueprint."""
        ...

    def __call__(self, inputs: Sequence[EncoderInput]) -> Sequence[torch.Tensor]:
        """[tokens that the input covers, width] of every input."""
        ...
