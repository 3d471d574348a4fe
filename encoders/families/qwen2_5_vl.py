"""Qwen2.5-VL: the image token, as often as the picture has squares of patches; marks around it are the chat template's.

Pictures have up to 16 megapixels, so what is kept of one until its request ends are its scaled bytes, once:
transformers' image processor makes eight times as many of them. Source: transformers' `processing_qwen2_5_vl.py` and
`image_processing_pil_qwen2_vl.py`.
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
from ..transformers_processor import byte_values, load_image_processor
from . import GetTensor, given


class Layout(Protocol):
    """How pictures are scaled; see `models.blueprint.scaled_tokens.ScaledTokens`."""

    @property
    def side(self) -> int: ...
    def grid(self, width: int, height: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class PatchProcessor:
    """See `inputs.ImageProcessor`. merge: patches on a side of a token. byte_values: see that."""

    image_token_id: int
    layout: Layout
    merge: int
    resample: Image.Resampling
    byte_values: NDArray[np.float32]

    @property
    def placeholder_id(self) -> int:
        return self.image_token_id

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """See `inputs.ImageProcessor`."""
        rows, columns = self.layout.grid(*image.size)
        scaled = image.resize((columns * self.layout.side, rows * self.layout.side), self.resample)
        arrays: Arrays = {
            "pixel_values": self._patches(np.asarray(scaled), rows, columns),
            "byte_values": self.byte_values,
            "image_grid_thw": np.array([[1, rows * self.merge, columns * self.merge]], dtype=np.int64),
        }
        entry = EncoderInput(mm_hash(image), arrays, (rows * columns,), (rows, columns))
        return ProcessedImage((self.image_token_id,), (entry,))

    def _patches(self, pixels: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
        """[height, width, channels] -> [patches, channels, height, width], those of a token together."""
        merge, patch = self.merge, self.layout.side // self.merge
        squares = pixels.reshape(rows, merge, patch, columns, merge, patch, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        return squares.reshape(-1, 3, patch, patch)


class PatchEncoder(TransformersEncoder):
    """See `inputs.Encoder`. Reads the patches of `PatchProcessor`."""

    def __init__(self, config: Mapping[str, Any], get: GetTensor) -> None:
        """See `TransformersEncoder`."""
        super().__init__(config, get)
        self._frames = given(config["vision_config"], "temporal_patch_size", default=2)

    def _batch(self, inputs: Sequence[EncoderInput]) -> Mapping[str, torch.Tensor]:
        batch = super()._batch(inputs)
        patches = batch["pixel_values"].unsqueeze(2).expand(-1, -1, self._frames, -1, -1)  # a picture stands still
        return {**batch, "pixel_values": patches.flatten(1)}


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
    return PatchProcessor(vision.image_token_id, layout, merge, processor.resample, byte_values(processor))
