"""Qwen2.5-VL: mrope, a tower with windows of 2 x 2 tokens, and limits of pixels that scale pictures up and down."""

from functools import partial
from typing import Any

from transformers import ProcessorMixin, Qwen2_5_VLConfig, Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from ..case import TEXT, Case
from ..tiny_tokenizer import BEGIN, FINISH, IMAGE, MARK, tiny_tokenizer

TOKEN = 8 * 8  # pixels
IDS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": MARK,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": FINISH,
}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "depth": 3,
    "intermediate_size": 20,
    "num_heads": 2,
    "out_hidden_size": TEXT["hidden_size"],
    "patch_size": 4,
}


def processor(make: Any, least: int, most: int) -> ProcessorMixin:
    """make: the class of the processor. least, most: tokens of a picture."""
    tokenizer = tiny_tokenizer(
        "<begin><image><finish>",
        image_token="<image>",
        video_token="<mark>",
        vision_start_token="<begin>",
        vision_end_token="<finish>",
    )
    images = Qwen2VLImageProcessorPil(size={"shortest_edge": least * TOKEN, "longest_edge": most * TOKEN}, patch_size=4)
    # transformers' processors of videos need torchvision; without this one would be demanded
    without_videos = {"get_attributes": classmethod(lambda cls: ["image_processor", "tokenizer"])}
    make = type(make.__name__, (make,), without_videos)
    made: ProcessorMixin = make(images, tokenizer, chat_template=tokenizer.chat_template)
    return made


def rope(sections: list[int], **keys: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, **keys}


CASES = {
    "windows": Case(
        Qwen2_5_VLConfig(
            text_config={
                **{key: value for key, value in TEXT.items() if key != "head_dim"},
                "rope_parameters": rope([1, 1, 1]),
            },
            vision_config={**VISION, "window_size": 16, "fullatt_block_indexes": [1]},
            **IDS,
        ),
        partial(processor, Qwen2_5_VLProcessor, 6, 12),
        token_types="mm_token_type_ids",
    ),
}
