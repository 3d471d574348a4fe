"""Qwen3-VL: mrope in turns, two levels of DeepStack, the first from the tower's last layer but one."""

from functools import partial

from transformers import Qwen3VLConfig, Qwen3VLProcessor

from ..case import TEXT, Case
from .qwen2_5_vl import IDS, VISION, processor, rope

CASES = {
    "levels": Case(
        Qwen3VLConfig(
            text_config={**TEXT, "rope_parameters": rope([2, 2, 1], mrope_interleaved=True)},
            vision_config={**VISION, "deepstack_visual_indexes": [1, 2], "num_position_embeddings": 16},
            **IDS,
        ),
        partial(processor, Qwen3VLProcessor, 1, 40),
        token_types="mm_token_type_ids",
    ),
}
