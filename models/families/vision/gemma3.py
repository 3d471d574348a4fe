"""Gemma 3's images: SigLIP, pooled to a square of tokens that see each other. Source: `modeling_gemma3.py`."""

from math import isqrt

from ...blueprint.config_reader import ConfigReader
from ...blueprint.model import Model
from ...blueprint.towers import read_tower
from ...blueprint.vision import FixedTokens, Vision
from . import image_token_id

MARKS = 4  # around an image: two special tokens between empty lines


def vision(config: ConfigReader, preprocessor: ConfigReader | None, text: Model) -> Vision:
    """SigLIP and the projector of a gemma3 checkpoint."""
    del preprocessor
    tower = read_tower(config.reader("vision_config"), "siglip_vision_model", ("siglip_vision_model",))
    tokens, hidden = config.integer("mm_tokens_per_image", 256), text.decoder.hidden_size
    side = isqrt(tokens)
    if side**2 != tokens or tower.patches_per_side % side:
        per_side = tower.patches_per_side
        raise config.error("mm_tokens_per_image", tokens, f"the square of a divisor of {per_side} patches per side")
    return Vision(
        tensors=tower.tensors
        | {
            "multi_modal_projector.mm_input_projection_weight": (tower.hidden_size, hidden),
            "multi_modal_projector.mm_soft_emb_norm.weight": (tower.hidden_size,),
        },
        image_token_id=image_token_id(config, text, 262144),
        tokens=FixedTokens(tokens, MARKS),
        bidirectional=True,
    )
