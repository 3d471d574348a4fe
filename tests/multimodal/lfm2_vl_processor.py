"""transformers' Lfm2VlImageProcessor with Pillow in place of torchvision, where that is not installed: what it makes of
pictures is its own code but for resizing and normalising."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend  # before there seems to be a torchvision

_V2 = "torchvision.transforms.v2"
_MISSING = ("torchvision", "torchvision.transforms", _V2, f"{_V2}.functional")


def _original() -> Any:
    added = []
    for name in _MISSING if "torchvision" not in sys.modules else ():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
        added.append(name)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    try:
        from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
    finally:
        for name in added:
            del sys.modules[name]
    return Lfm2VlImageProcessor


Original: Any = _original()


class _Pillow:
    """What the original's backend would do with torchvision."""

    def process_image(self, image: Image.Image, **options: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def resize(self, image: torch.Tensor, size: Any, resample: Any = None, **options: Any) -> torch.Tensor:
        pictures = (Image.fromarray(one.permute(1, 2, 0).numpy()) for one in image)
        resized = [np.array(picture.resize((size.width, size.height), resample)) for picture in pictures]
        return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2)

    def normalize(self, image: torch.Tensor, mean: Any, std: Any, **options: Any) -> torch.Tensor:
        means, stds = (torch.as_tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (mean, std))
        return (image - means) / stds


# Behind the original, before its backend: what the original overrides stays.
Lfm2VlImageProcessor: Any = type(
    "Lfm2VlImageProcessor", (Original, type("_PillowBackend", (_Pillow, TorchvisionBackend), {})), {}
)
