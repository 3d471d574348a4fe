"""Qwen3.5's mixture of experts, tied."""

from functools import partial

from transformers import Qwen3_5MoeConfig, Qwen3VLProcessor

from ..case import Case
from .qwen2_5_vl import IDS, processor
from .qwen3_5 import HYBRID, TOWER

CASES = {
    "experts": Case(
        Qwen3_5MoeConfig(
            text_config={
                **HYBRID,
                "moe_intermediate_size": 22,
                "shared_expert_intermediate_size": 14,
                "num_experts": 5,
                "num_experts_per_tok": 2,
            },
            vision_config=TOWER,
            tie_word_embeddings=True,
            **IDS,
        ),
        partial(processor, Qwen3VLProcessor, 4, 20),
        token_types="mm_token_type_ids",
        embedding_gain=0.3,
    ),
}
