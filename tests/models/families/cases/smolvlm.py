"""SmolVLM 2: as Idefics 3, here with a tied head."""

from transformers import SmolVLMConfig

from .. import towers
from . import llama

CASES = {
    "tied": SmolVLMConfig(
        text_config={**llama.SMALL, "model_type": "llama", "num_key_value_heads": 1},
        vision_config=towers.SIGLIP,
        image_token_id=3,
        tie_word_embeddings=True,
    ),
}
