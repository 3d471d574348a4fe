"""Qwen3-VL's mixture of experts, a dense layer between."""

from transformers import Qwen3VLMoeConfig

from . import qwen3_moe, qwen3_vl

CASES = {
    "dense layer between": Qwen3VLMoeConfig(
        image_token_id=3,
        text_config={**qwen3_moe.SMALL, "mlp_only_layers": [1], "rope_parameters": qwen3_vl.ROPE},
        vision_config=qwen3_vl.VISION,
    ),
}
