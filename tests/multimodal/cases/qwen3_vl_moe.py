"""Qwen3-VL's mixture of experts."""

from functools import partial

from transformers import Qwen3VLMoeConfig, Qwen3VLProcessor

from ..case import TEXT, Case
from .qwen2_5_vl import IDS, VISION, processor, rope

CASES = {
    "experts": Case(
        Qwen3VLMoeConfig(
            text_config={
                **TEXT,
                "moe_intermediate_size": 22,
                "num_experts": 5,
                "num_experts_per_tok": 2,
                "rope_parameters": rope([2, 2, 1], mrope_interleaved=True),
            },
            vision_config={**VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 25},
            **IDS,
        ),
        partial(processor, Qwen3VLProcessor, 2, 9),
        token_types="mm_token_type_ids",
    ),
}
