"""Mistral 3's images: Pixtral, whose patches are merged by a norm and a projection, then two more.
Source: `modeling_mistral3.py`."""

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.parts import linear
from ...blueprint.row_tokens import read_row_tokens
from ...blueprint.towers import read_tower
from ...blueprint.vision import Vision
from . import image_token_id
from .llava import projector

DEFAULTS = {"vision_feature_layer": -1, "multimodal_projector_bias": False}


def vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
    """Tower and projector of a mistral3 checkpoint."""
    tower = read_tower(config.reader("vision_config"), "pixtral", ("pixtral",))
    merge, hidden, name = config.integer("spatial_merge_size", 2), text.decoder.hidden_size, "multi_modal_projector"
    layers = config.get("vision_feature_layer")
    if isinstance(layers, list) and len(layers) != 1:
        raise config.error("vision_feature_layer", layers, "one layer, whose features have a norm")
    merger = linear(f"{name}.patch_merger.merging_layer", tower.hidden_size, tower.hidden_size * merge**2)
    return Vision(
        tensors=tower.tensors
        | {f"{name}.norm.weight": (tower.hidden_size,)}
        | merger
        | projector(config.with_defaults(DEFAULTS), tower, hidden),
        image_token_id=image_token_id(config, text, 10),
        tokens=read_row_tokens(preprocessor, tower.patch_size * merge, tower.image_size),
    )
