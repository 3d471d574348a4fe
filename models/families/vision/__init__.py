"""What sees images in published checkpoints: one file each, named after the `model_type` of the whole.

Each has one public function, `vision(config, preprocessor, text)`: from the keys of `config.json`, those of the image
processor's configuration and the blueprint of the text decoder to a `Vision`. A type without a file is served as its
text decoder alone.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.vision import Vision

TYPES = {module.name for module in iter_modules(__path__)}


class Family(Protocol):
    """What a file offers."""

    def vision(self, config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
        """config: of the whole. preprocessor: None where the checkpoint has none, or none was read.

        Raises ValueError naming the key and value of what is not supported.
        """
        ...


def read_vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision | None:
    """None: the checkpoint is served without images."""
    model_type = config.get("model_type")
    if model_type not in TYPES or "vision_config" not in config:
        return None
    family: Family = import_module(f".{model_type}", __name__)
    return family.vision(config, preprocessor, text)


def image_token_id(config: ConfigReader, text: Model, default: int) -> int:
    """The token in whose place embeddings go, under either spelling of its key."""
    key = config.either("image_token_id", "image_token_index")
    return config.integer(key, default, at_least=0, at_most=text.decoder.vocab_size - 1)
