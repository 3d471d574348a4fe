"""LLaVA-NeXT: grids of up to four tiles, some with an odd number of lines."""

from typing import Any

from transformers import LlavaNextConfig, LlavaNextProcessor, ProcessorMixin
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from ..case import TEXT, Case
from ..tiny_tokenizer import IMAGE, tiny_tokenizer
from .llava import CLIP

GRIDS = [[12, 24], [24, 12], [24, 24], [36, 12]]


def processor() -> ProcessorMixin:
    tokenizer = tiny_tokenizer("<image>", image_token="<image>")
    size = {"height": 12, "width": 12}
    images = LlavaNextImageProcessorPil(size={"shortest_edge": 12}, crop_size=size, image_grid_pinpoints=GRIDS)
    llava: Any = LlavaNextProcessor
    made: ProcessorMixin = llava(
        images,
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template,
        num_additional_image_tokens=1,
    )
    return made


CASES = {
    "grids": Case(
        LlavaNextConfig(
            text_config={**TEXT, "model_type": "mistral", "sliding_window": None},
            vision_config={**CLIP, "image_size": 12},
            image_token_index=IMAGE,
            image_grid_pinpoints=GRIDS,
        ),
        processor,
    ),
}
