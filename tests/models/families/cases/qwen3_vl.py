"""Qwen3-VL: a Qwen3 with mrope, tied."""

from transformers import Qwen3VLConfig

from .. import towers
from . import llama

CASES = {
    "tied": Qwen3VLConfig(
        image_token_id=3,
        text_config={
            **llama.SMALL,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 2, 1],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            **towers.QWEN,
            "depth": 2,
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 16,
        },
        tie_word_embeddings=True,
    ),
}
