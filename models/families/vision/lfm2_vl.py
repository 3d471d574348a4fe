"""LFM2-VL's images: SigLIP 2 for any shape, squares of patches put together, a norm and two projections.
Source: `modeling_lfm2_vl.py`."""

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.parts import linear
from ...blueprint.tile_tokens import read_tile_tokens
from ...blueprint.towers import norm, read_tower
from ...blueprint.vision import Vision
from . import image_token_id


def vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
    """Tower and projector of an lfm2_vl checkpoint."""
    tower = read_tower(config.reader("vision_config"), "siglip2_vision_model", ("siglip2_vision_model",))
    factor, hidden, name = config.integer("downsample_factor", 2), text.decoder.hidden_size, "multi_modal_projector"
    inputs, inner = tower.hidden_size * factor**2, config.integer("projector_hidden_size", 2560)
    bias = config.flag("projector_bias", True)
    tensors = tower.tensors | linear(f"{name}.linear_1", inner, inputs, bias)
    tensors |= linear(f"{name}.linear_2", hidden, inner, bias)
    if config.flag("projector_use_layernorm", True):
        tensors |= norm(f"{name}.layer_norm", inputs)
    return Vision(
        tensors=tensors,
        image_token_id=image_token_id(config, text, 396),
        tokens=read_tile_tokens(preprocessor, tower.patch_size, factor),
    )
