"""Mistral Small 3.1: a Mistral without windows under `language_model`, with a head of its own."""

from transformers import Mistral3Config

from .. import towers
from . import llama

CASES = {
    "untied": Mistral3Config(
        text_config={**llama.SMALL, "model_type": "mistral", "sliding_window": None},
        vision_config={**towers.SIGLIP, "model_type": "pixtral", "head_dim": 8},
        image_token_index=3,
        tie_word_embeddings=False,
    ),
}
