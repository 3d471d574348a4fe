"""PromptImages: the images of prompts for one model: read, refused, and put in place of their placeholders.

Knows nothing of templates and of lengths. Everything wrong with an image is one ValueError sentence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.encoders.images import ImageSource, load_image
from hybrid.encoders.inputs import EncoderInput, ImageProcessor, ProcessedImage
from hybrid.models.image_positions import ImagePositions
from hybrid.scheduler.plan import Ints, TokenIds
from hybrid.scheduler.request import ImageInput

from .image_reference import resolve_image
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Expanded:
    """A prompt with every image token repeated. starts: where each of the tokens before begins in it, then its end."""

    token_ids: TokenIds
    starts: Ints
    images: tuple[ImageInput, ...]
    inputs: tuple[EncoderInput, ...]  # one for each of `images`

    def positions(self) -> ImagePositions | None:
        """Where ropes know three positions per token and there are images."""
        grids = [entry.grid for entry in self.inputs if entry.grid is not None]
        assert len(grids) in (0, len(self.inputs)), "positions follow all images or none"
        return ImagePositions.of([image.offset for image in self.images], grids) if grids else None


class PromptImages:
    """Nothing changes after construction.

    processor: None where the model takes no images; no_images says why. max_images: of a prompt; None: any number.
    """

    def __init__(
        self, processor: ImageProcessor | None, tokenizer: Tokenizer | None, max_images: int | None, no_images: str
    ) -> None:
        """Raises ValueError for a tokenizer that cannot write a placeholder."""
        self.processor = processor
        self._tokenizer = tokenizer
        self._max_images = max_images
        self._no_images = no_images
        if processor is not None and tokenizer is not None:
            for token_id in (processor.placeholder_id, processor.image_token_id):
                if not tokenizer.token(token_id):
                    raise ValueError(f"the tokenizer has no token {token_id}, which stands for an image")

    def num_tokens(self, source: ImageSource) -> int:
        """Tokens that a picture makes a prompt longer by, with those around and between its own. Raises ValueError."""
        if self.processor is None:
            raise ValueError(self._no_images)
        processed = self.processor(load_image(resolve_image(source)))
        runs = [run for entry in processed.inputs for run in entry.runs]
        return len(self.token_ids(processed)) - len(runs) + sum(runs)

    def refuse(self, num_images: int) -> None:
        """Raises ValueError for more than a prompt may bring."""
        if num_images and self.processor is None:
            raise ValueError(f"{self._no_images}, and the prompt brings {num_images}")
        if self._max_images is not None and num_images > self._max_images:
            raise ValueError(f"the prompt brings {num_images} images, limit_mm_per_prompt allows {self._max_images}")

    def read(self, sources: Sequence[ImageSource], num_placeholders: int) -> Iterator[ProcessedImage]:
        """The pictures, as many as placeholders, each made ready when it is asked for. Raises ValueError."""
        assert self.processor is not None
        if num_placeholders != len(sources):
            name, count = self._name(self.processor.placeholder_id), _count(len(sources), "image")
            if num_placeholders == 0:
                raise ValueError(f"the prompt brings {count} but no placeholder; write {name} where each belongs")
            raise ValueError(f"the prompt has {_count(num_placeholders, 'image placeholder')} ({name}) and {count}")
        for index, source in enumerate(sources):
            try:
                processed = self.processor(load_image(resolve_image(source)))
            except ValueError as error:
                several = len(sources) > 1
                raise ValueError(f"image {index + 1} of {len(sources)}: {error}" if several else str(error)) from None
            yield processed

    def text(self, image: ProcessedImage) -> str:
        """What replaces the picture's placeholder in a text. Needs a tokenizer."""
        assert self._tokenizer is not None
        return "".join(part if isinstance(part, str) else self._tokenizer.token(part) for part in image.parts)

    def token_ids(self, image: ProcessedImage) -> TokenIds:
        """What replaces the picture's placeholder in token ids. Raises ValueError where a tokenizer is missing."""
        parts = (self._encoded(part) if isinstance(part, str) else [part] for part in image.parts)
        return np.concatenate([np.array(part, dtype=np.int32) for part in parts])

    def expand(self, token_ids: TokenIds, images: Sequence[ProcessedImage]) -> Expanded:
        """token_ids: the image token stands once for every run of the images' inputs. Raises ValueError where it does
        not."""
        inputs = tuple(entry for image in images for entry in image.inputs)
        runs = [run for entry in inputs for run in entry.runs]
        repeats = np.ones(len(token_ids), dtype=np.int64)
        places = np.zeros(0, dtype=np.int64)
        if self.processor is not None:
            places = np.flatnonzero(token_ids == self.processor.image_token_id)
            if len(places) != len(runs):
                name = self._name(self.processor.image_token_id)
                raise ValueError(
                    f"the prompt holds {name} {_times(len(places))} where its images make it {_times(len(runs))}"
                )
            repeats[places] = runs
        starts = np.concatenate([[0], np.cumsum(repeats)])
        placed, begin = [], 0
        for entry in inputs:
            first, last = places[begin], places[begin + len(entry.runs) - 1]
            begin += len(entry.runs)
            if last - first != 2 * (len(entry.runs) - 1):  # the encoder leaves room for one token between two runs
                raise ValueError("what stands between two rows of an image is not one token of the tokenizer")
            placed.append(ImageInput(entry.mm_hash, int(starts[first]), int(starts[last + 1] - starts[first])))
        return Expanded(np.repeat(token_ids, repeats), starts, tuple(placed), inputs)

    def _encoded(self, text: str) -> TokenIds:
        if self._tokenizer is None:
            raise ValueError(
                "text around an image needs a tokenizer, which skip_tokenizer_init left out; pass token ids"
            )
        return self._tokenizer.encode(text, False).token_ids

    def _name(self, token_id: int) -> str:
        return f"token {token_id}" if self._tokenizer is None else repr(self._tokenizer.token(token_id))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number or 'no'} {noun}s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
