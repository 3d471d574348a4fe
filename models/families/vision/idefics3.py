"""Idefics 3's images: tiles of one size, and SigLIP, whose patches are put together before one projection.
Source: `modeling_idefics3.py`."""

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.parts import linear
from ...blueprint.split_tokens import read_split_tokens
from ...blueprint.towers import siglip
from ...blueprint.vision import Vision
from . import image_token_id

SIZES = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32, "vision_use_head": False}


def vision(
    config: ConfigReader, preprocessor: ConfigReader | None, text: Model, default_token_id: int = 128257
) -> Vision:
    """Tower and connector of an idefics3 checkpoint. default_token_id: of images, where no key says so."""
    tower = siglip(config.reader("vision_config").with_defaults(SIZES), "vision_model")
    scale, hidden = config.integer("scale_factor", 2), text.decoder.hidden_size
    projection = linear("connector.modality_projection.proj", hidden, tower.hidden_size * scale**2)
    return Vision(
        tensors=tower.tensors | projection,
        image_token_id=image_token_id(config, text, default_token_id),
        tokens=read_split_tokens(preprocessor, tower.patch_size, scale, tower.image_size),
    )
