"""Idefics 3 and SmolVLM: a Llama under `text_model`."""

from transformers import Idefics3Config

from .. import towers
from . import llama

CASES = {
    "untied": Idefics3Config(
        text_config={**llama.SMALL, "model_type": "llama"}, vision_config=towers.SIGLIP, image_token_id=3
    ),
}
