"""Models that see images: one file each, named after the `model_type`, with an image processor and an encoder.

Configurations were checked before (`models.families`); what is wrong with an image processor's own is said here.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from ..checked import CheckedImageProcessor, one_line, try_out
from ..inputs import Encoder, ImageProcessor, VisionFacts

GetTensor = Callable[[str], torch.Tensor]


class Family(Protocol):
    """What a file offers. config: the whole `config.json`."""

    def encoder(self, config: Mapping[str, Any], get: GetTensor) -> Encoder:
        """get: a tensor by its name in the checkpoint's blueprint, in the dtype and on the device to run with. Each is
        asked for once and kept."""
        ...

    def image_processor(self, config: Mapping[str, Any], folder: Path, vision: VisionFacts) -> ImageProcessor | None:
        """folder: the checkpoint's. None where it does not say how pictures are to be prepared. Raises ValueError."""
        ...


def family(model_type: str) -> Family:
    """Of a model that sees images."""
    found: Family = import_module(f".{model_type}", __name__)
    return found


@torch.inference_mode()
def image_processor(
    config: Mapping[str, Any], folder: Path, vision: VisionFacts, encoder: Encoder, max_tokens: int
) -> ImageProcessor | None:
    """That of the checkpoint's family, tried out with its encoder. max_tokens: of a picture; larger ones are refused
    before they are prepared. See `Family`."""
    try:
        processor = family(config["model_type"]).image_processor(config, folder, vision)
        if processor is None:
            return None
        checked = CheckedImageProcessor(processor, vision.tokens, max_tokens)
        try_out(checked, encoder)
    except Exception as error:  # whatever its files make libraries raise
        raise ValueError(f"{folder} cannot be shown pictures: {one_line(error)}") from None
    return checked


def given(config: Mapping[str, Any], *keys: str, default: Any) -> Any:
    """The value of the first of several spellings of a key that has one."""
    return next((config[key] for key in keys if config.get(key) is not None), default)
