"""Qwen3.5's mixture of experts as published, under `text_config`; here tied."""

from transformers import Qwen3_5MoeConfig

from .qwen3_5 import TEXT, VISION

CASES = {
    "tied": Qwen3_5MoeConfig(
        image_token_id=3,
        text_config={
            **TEXT,
            "moe_intermediate_size": 22,
            "shared_expert_intermediate_size": 14,
            "num_experts": 5,
            "num_experts_per_tok": 2,
        },
        vision_config=VISION,
        tie_word_embeddings=True,
    ),
}
