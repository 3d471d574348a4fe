"""Mistral 3: Pixtral with rows of merged patches between marks of other names than the published ones."""

from typing import Any

from transformers import Mistral3Config, ProcessorMixin
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from ..case import TEXT, VIT, Case
from ..pixtral_processor import PixtralProcessor
from ..tiny_tokenizer import IMAGE, tiny_tokenizer

PIXTRAL: dict[str, Any] = {**VIT, "model_type": "pixtral", "image_size": 32, "patch_size": 4}


def processor(longest: int, merge: int, more: tuple[str, ...] = (), **names: str) -> ProcessorMixin:
    """longest: most pixels per side. more, names: of special tokens."""
    tokenizer = tiny_tokenizer("<image>", more)
    images = PixtralImageProcessorPil(size={"longest_edge": longest}, patch_size={"height": 4, "width": 4})
    made: ProcessorMixin = PixtralProcessor(
        images,
        tokenizer,
        patch_size=4,
        spatial_merge_size=merge,
        chat_template=tokenizer.chat_template,
        image_token="<image>",
        **names,
    )
    return made


CASES = {
    "rows": Case(
        Mistral3Config(
            text_config={**TEXT, "model_type": "mistral", "sliding_window": None},
            vision_config=PIXTRAL,
            image_token_index=IMAGE,
            tie_word_embeddings=False,
        ),
        lambda: processor(32, 2, image_break_token="<break>", image_end_token="<finish>"),
    ),
}
