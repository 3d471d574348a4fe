"""Qwen3-VL: a Qwen3 with mrope, tied."""

from typing import Any

from transformers import Qwen3VLConfig

from .. import towers
from . import llama

ROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [2, 2, 1],
    "mrope_interleaved": True,
}
VISION: dict[str, Any] = {
    **towers.QWEN,
    "depth": 2,
    "deepstack_visual_indexes": [0, 1],
    "num_position_embeddings": 16,
}
CASES = {
    "tied": Qwen3VLConfig(
        image_token_id=3,
        text_config={**llama.SMALL, "rope_parameters": ROPE},
        vision_config=VISION,
        tie_word_embeddings=True,
    ),
}
