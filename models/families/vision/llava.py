"""LLaVA's images: features of one or several layers of CLIP, SigLIP or Pixtral through two projections.
Source: `modeling_llava.py`."""

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.parts import Shapes, linear
from ...blueprint.row_tokens import read_row_tokens
from ...blueprint.towers import Tower, read_tower
from ...blueprint.vision import FixedTokens, ImageTokens, Vision
from . import image_token_id

TOWERS = ("clip_vision_model", "siglip_vision_model")


def vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
    """Tower and projector of a llava checkpoint."""
    tower = read_tower(config.reader("vision_config"), "clip_vision_model", (*TOWERS, "pixtral"))
    without_first = config.one_of("vision_feature_select_strategy", ("default", "full"), "default") == "default"
    tokens: ImageTokens = FixedTokens(tower.num_features - without_first)
    if config.reader("vision_config").get("model_type") == "pixtral":
        config.refuse("vision_feature_select_strategy", ("full",), "all features of Pixtral are those of patches")
        tokens = read_row_tokens(preprocessor, tower.patch_size, tower.image_size)
    return Vision(
        tensors=tower.tensors | projector(config, tower, text.decoder.hidden_size),
        image_token_id=image_token_id(config, text, 32000),
        tokens=tokens,
    )


def projector(config: ConfigReader, tower: Tower, hidden: int) -> Shapes:
    """Two projections of the features of the layers that `vision_feature_layer` names."""
    layers = config.get("vision_feature_layer", -2)
    listed = layers if isinstance(layers, list) else [layers]
    most = tower.num_hidden_layers
    if not listed or not all(type(layer) is int and -most - 1 <= layer <= most for layer in listed):
        raise config.error("vision_feature_layer", layers, f"a layer, or a list of layers, of {most}")
    bias = config.flag("multimodal_projector_bias", True)
    name = "multi_modal_projector"
    inputs = tower.hidden_size * len(listed)
    return linear(f"{name}.linear_1", hidden, inputs, bias) | linear(f"{name}.linear_2", hidden, hidden, bias)
