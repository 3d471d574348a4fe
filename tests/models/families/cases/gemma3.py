"""Gemma 3 as published: the text decoder under `text_config`, tied."""

from transformers import Gemma3Config

from .. import towers
from . import llama

CASES = {
    "windows": Gemma3Config(
        text_config={
            **llama.SMALL,
            "model_type": "gemma3_text",
            "sliding_window": 5,
            "query_pre_attn_scalar": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        vision_config=towers.SIGLIP,
        mm_tokens_per_image=4,
        image_token_index=3,
        boi_token_index=4,
        eoi_token_index=5,
    ),
}
