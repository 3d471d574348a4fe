"""LLaVA-NeXT's images: tiles as LLaVA sees them, put together without what pads them, a learned mark after each line.
Source: `modeling_llava_next.py`."""

from ...blueprint.anyres_tokens import read_anyres_tokens
from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.towers import read_tower
from ...blueprint.vision import Vision
from . import image_token_id
from .llava import TOWERS, projector


def vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
    """Tower and projector of a llava_next checkpoint."""
    tower = read_tower(config.reader("vision_config"), "clip_vision_model", TOWERS)
    strategy = config.one_of("vision_feature_select_strategy", ("default", "full"), "default")
    if (strategy == "default") != bool(tower.class_tokens):
        expected = "'default' for a tower with a class token, 'full' for one without"
        raise config.error("vision_feature_select_strategy", strategy, expected)
    hidden = text.decoder.hidden_size
    return Vision(
        tensors=tower.tensors | projector(config, tower, hidden) | {"image_newline": (hidden,)},
        image_token_id=image_token_id(config, text, 32000),
        tokens=read_anyres_tokens(config, preprocessor, tower.image_size, tower.patches_per_side),
    )
