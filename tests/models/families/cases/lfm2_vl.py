"""LFM2-VL: short convolutions and attention under `text_config`, tied."""

from transformers import Lfm2VlConfig

from .. import towers
from . import llama

CASES = {
    "tied": Lfm2VlConfig(
        text_config={
            **llama.SMALL,
            "model_type": "lfm2",
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
        vision_config={**towers.SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 16, "patch_size": 4},
        image_token_id=3,
        projector_hidden_size=12,
    ),
}
