"""LLaVA-NeXT: a Llama under `language_model`, and what sees images beside it."""

from transformers import LlavaNextConfig

from .. import towers
from . import llama

CASES = {
    "untied": LlavaNextConfig(
        text_config={**llama.SMALL, "model_type": "llama", "attention_bias": True},
        vision_config={**towers.SIGLIP, "model_type": "clip_vision_model"},
        image_token_index=3,
    ),
}
