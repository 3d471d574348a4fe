"""Qwen2.5-VL: the image token, as often as the picture has squares of patches; marks around it are the chat template's.

Pictures have up to 16 megapixels, so what is kept of one until its request ends are bytes: an eighth of what
transformers' image processor makes of them, which the encoder looks up. Source: transformers'
`processing_qwen2_5_vl.py` and `image_processing_pil_qwen2_vl.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..images import mm_hash
from ..inputs import Arrays, EncoderInput, ProcessedImage, VisionFacts
from ..transformers_encoder import TransformersEncoder
from ..transformers_processor import load_image_processor
from . import GetTensor, given


class Layout(Protocol):
    """How pictures are scaled; see `models.blueprint.scaled_tokens.ScaledTokens`."""

    @property
    def side(self) -> int: ...
    def grid(self, width: int, height: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class PatchProcessor:
    """See `inputs.ImageProcessor`. merge: patches on a side of a token. values: float32 [channels, 256], what the tower
    reads for every byte."""

    image_token_id: int
    layout: Layout
    merge: int
    resample: Image.Resampling
    values: NDArray[np.float32]

    @property
    def placeholder_id(self) -> int:
        return self.image_token_id

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """See `inputs.ImageProcessor`."""
        rows, columns = self.layout.grid(*image.size)
        scaled = image.resize((columns * self.layout.side, rows * self.layout.side), self.resample)
        arrays: Arrays = {
            "pixels": self._patches(np.asarray(scaled), rows, columns),
            "values": self.values[None],
            "image_grid_thw": np.array([[1, rows * self.merge, columns * self.merge]], dtype=np.int64),
        }
        entry = EncoderInput(mm_hash(image), arrays, (rows * columns,), (rows, columns))
        return ProcessedImage((self.image_token_id,), (entry,))

    def _patches(self, pixels: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
        """[height, width, channels] -> [patches, channels, pixels of a patch], those of a token one after the other."""
        merge, patch = self.merge, self.layout.side // self.merge
        squares = pixels.reshape(rows, merge, patch, columns, merge, patch, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        return squares.reshape(rows * columns * merge**2, 3, patch**2)


class PatchEncoder(TransformersEncoder):
    """See `inputs.Encoder`. Reads the patches of `PatchProcessor`."""

    def __init__(self, config: Mapping[str, Any], get: GetTensor) -> None:
        """See `TransformersEncoder`."""
        super().__init__(config, get)
        self._frames = given(config["vision_config"], "temporal_patch_size", default=2)

    def _batch(self, inputs: Sequence[EncoderInput]) -> Mapping[str, torch.Tensor]:
        batch = dict(super()._batch(inputs))
        pixels, values = batch.pop("pixels"), batch.pop("values")[0]
        channels = [
            values[channel].index_select(0, pixels[:, channel].int().flatten()).view(len(pixels), 1, 1, -1)
            for channel in range(len(values))
        ]
        # a picture stands still: its frames are equal
        batch["pixel_values"] = torch.cat(channels, dim=1).expand(-1, -1, self._frames, -1).flatten(1)
        return batch


def encoder(config: Mapping[str, Any], get: GetTensor) -> PatchEncoder:
    """See `Family`."""
    return PatchEncoder(config, get)


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> PatchProcessor | None:
    """See `Family`."""
    processor = load_image_processor(folder)
    if processor is None:
        return None
    layout: Any = vision.tokens
    merge = given(config["vision_config"], "spatial_merge_size", default=2)
    return PatchProcessor(vision.image_token_id, layout, merge, processor.resample, _values(processor))


def _values(processor: Any) -> NDArray[np.float32]:
    """What transformers' image processor makes of every byte of a channel."""
    values = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
    if processor.do_rescale:
        values = processor.rescale(values, processor.rescale_factor)
    if processor.do_normalize:
        values = processor.normalize(values, processor.image_mean, processor.image_std)
    return values[:, 0].astype(np.float32)
