"""Qwen3.5: delta nets and gated attention with mrope, a tower without levels."""

from functools import partial
from typing import Any

from transformers import Qwen3_5Config, Qwen3VLProcessor

from ..case import TEXT, Case
from .qwen2_5_vl import IDS, VISION, processor, rope

TOWER: dict[str, Any] = {**VISION, "num_position_embeddings": 16}
HYBRID: dict[str, Any] = {
    **TEXT,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "rope_parameters": rope([1, 1, 1], partial_rotary_factor=0.6, mrope_interleaved=True),
}
CASES = {
    "delta nets": Case(
        Qwen3_5Config(text_config=HYBRID, vision_config=TOWER, **IDS),
        partial(processor, Qwen3VLProcessor, 1, 40),
        token_types="mm_token_type_ids",
    ),
}
