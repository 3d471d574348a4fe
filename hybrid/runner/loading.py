"""Loading: a checkpoint folder -> decoder and, where it sees images, encoder. Models and encoders do not know each
other; here they are put together."""

from dataclasses import dataclass
from pathlib import Path

import torch

from hybrid.encoders.vit import VisionTower
from hybrid.models.loading import read_checkpoint
from hybrid.models.native import NativeModel
from hybrid.models.native_config import NativeConfig
from hybrid.models.native_tensors import VISION_PREFIX


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint ready to serve: pass `model` and `encoder` to ModelRunner."""

    config: NativeConfig
    model: NativeModel
    encoder: VisionTower | None


def load(directory: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> LoadedModel:
    """Read the folder; dtype None: the checkpoint's own. Raises ValueError as `models.loading.read_checkpoint` does."""
    checkpoint = read_checkpoint(directory)
    chosen = checkpoint.dtype if dtype is None else dtype
    target = torch.device(device)
    model = NativeModel(checkpoint.config, checkpoint.tensors, chosen, target)
    encoder = None
    if checkpoint.config.vision_config is not None:
        vision = {
            name.removeprefix(VISION_PREFIX): tensor
            for name, tensor in checkpoint.tensors.items()
            if name.startswith(VISION_PREFIX)
        }
        encoder = VisionTower(checkpoint.config.vision_config, vision, chosen, target)
    return LoadedModel(checkpoint.config, model, encoder)
