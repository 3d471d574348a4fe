"""Idefics 3: pictures cut into tiles, some of whose marks are no special tokens."""

from typing import Any

from transformers import Idefics3Config, Idefics3Processor, ProcessorMixin
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from ..case import TEXT, VIT, Case
from ..tiny_tokenizer import IMAGE, tiny_tokenizer

MARKS = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<row_1_col_1>", "<row_1_col_2>")
VISION: dict[str, Any] = {**VIT, "image_size": 16, "patch_size": 4}
TEXT_MODEL: dict[str, Any] = {**TEXT, "model_type": "llama"}


def processor(make: Any = Idefics3Processor, images: Any = Idefics3ImageProcessorPil, **keys: Any) -> ProcessorMixin:
    """keys: of the image processor."""
    tokenizer = tiny_tokenizer("<image>", MARKS)
    tiles = images(max_image_size={"longest_edge": 16}, **keys)
    made: ProcessorMixin = make(tiles, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template)
    return made


CASES = {
    "tiles": Case(
        Idefics3Config(text_config=TEXT_MODEL, vision_config=VISION, image_token_id=IMAGE, pad_token_id=0),
        lambda: processor(size={"longest_edge": 32}),
    ),
}
