"""The native architecture: square pictures of one size, and a ViT of our own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ..images import mm_hash
from ..inputs import EncoderInput, ProcessedImage, VisionFacts
from ..preprocess import preprocess
from ..upload import upload
from ..vit import VisionTower
from . import GetTensor


@dataclass(frozen=True, slots=True)
class NativeEncoder:
    """See `inputs.Encoder`."""

    tower: VisionTower

    @property
    def projections(self) -> Mapping[str, nn.Linear]:
        """See `inputs.Encoder`."""
        return {f"vision.{name}": module for name, module in self.tower.projections.items()}

    def __call__(self, inputs: Sequence[EncoderInput]) -> Sequence[torch.Tensor]:
        pixels = np.stack([entry.arrays["pixel_values"] for entry in inputs])
        return self.tower(upload(pixels, self.tower.device)).unbind()


@dataclass(frozen=True, slots=True)
class NativeImageProcessor:
    """See `inputs.ImageProcessor`. size: pixels per side."""

    image_token_id: int
    num_image_tokens: int
    size: int

    @property
    def placeholder_id(self) -> int:
        return self.image_token_id

    def __call__(self, image: Image.Image) -> ProcessedImage:
        arrays = {"pixel_values": preprocess(image, self.size)}
        return ProcessedImage((self.image_token_id,), (EncoderInput(mm_hash(image), arrays, (self.num_image_tokens,)),))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """See `vit.VisionSizes`."""

    image_size: int
    patch_size: int
    merge_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    layer_norm_eps: float


def encoder(config: Mapping[str, Any], get: GetTensor) -> NativeEncoder:
    """See `Family`."""
    sizes = _Sizes(**{name: config["vision_config"][name] for name in _Sizes.__dataclass_fields__})
    return NativeEncoder(VisionTower(sizes, lambda name: get(f"vision.{name}")))


def image_processor(config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> NativeImageProcessor:
    """See `Family`."""
    del folder
    return NativeImageProcessor(vision.image_token_id, vision.tokens.most, config["vision_config"]["image_size"])
