"""Qwen3.5 as published: delta nets and gated attention with mrope under `text_config`."""

from typing import Any

from transformers import Qwen3_5Config

from .. import towers
from . import llama

TEXT: dict[str, Any] = {
    **llama.SMALL,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.6,
        "mrope_section": [1, 1, 1],
        "mrope_interleaved": True,
    },
}
VISION: dict[str, Any] = {**towers.QWEN, "num_position_embeddings": 16}
CASES = {"untied": Qwen3_5Config(image_token_id=3, text_config=TEXT, vision_config=VISION)}
