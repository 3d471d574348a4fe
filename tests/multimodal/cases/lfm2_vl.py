"""LFM2-VL: pictures of any shape, some of which are cut into up to four tiles."""

from typing import Any

from transformers import Lfm2VlConfig, ProcessorMixin
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor

from ..case import TEXT, VIT, Case
from ..lfm2_vl_processor import Lfm2VlImageProcessor
from ..tiny_tokenizer import IMAGE, tiny_tokenizer

MARKS = ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<|img_row_1_col_1|>", "<|img_row_1_col_2|>")
VISION: dict[str, Any] = {**VIT, "model_type": "siglip2_vision_model", "num_patches": 9, "patch_size": 4}
LFM2: dict[str, Any] = {
    **{key: value for key, value in TEXT.items() if key != "head_dim"},
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
}


def processor(**keys: Any) -> ProcessorMixin:
    """keys: of the image processor."""
    tokenizer = tiny_tokenizer("<image>", MARKS, image_token="<image>")
    images = Lfm2VlImageProcessor(encoder_patch_size=4, min_image_tokens=2, max_image_tokens=6, **keys)
    made: ProcessorMixin = Lfm2VlProcessor(images, tokenizer, chat_template=tokenizer.chat_template)
    return made


CASES = {
    "tiles": Case(
        Lfm2VlConfig(text_config=LFM2, vision_config=VISION, image_token_id=IMAGE, projector_hidden_size=12),
        lambda: processor(tile_size=16, max_tiles=4, max_pixels_tolerance=1.2),
        embedding_gain=0.3,
    ),
}
