"""Gemma 3: more tokens per image than a window, pooled patches."""

from transformers import Gemma3Config, Gemma3Processor, ProcessorMixin
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from ..case import TEXT, VIT, Case
from ..tiny_tokenizer import BEGIN, FINISH, IMAGE, tiny_tokenizer


def processor() -> ProcessorMixin:
    tokenizer = tiny_tokenizer("<begin>", boi_token="<begin>", eoi_token="<finish>", image_token="<image>")
    images = Gemma3ImageProcessorPil(size={"height": 24, "width": 24})
    return Gemma3Processor(images, tokenizer, tokenizer.chat_template, image_seq_length=9)


CASES = {
    "windows": Case(
        Gemma3Config(
            text_config={
                **TEXT,
                "sliding_window": 5,
                "query_pre_attn_scalar": 7,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            vision_config={**VIT, "image_size": 24, "patch_size": 4, "vision_use_head": False},
            mm_tokens_per_image=9,
            image_token_index=IMAGE,
            boi_token_index=BEGIN,
            eoi_token_index=FINISH,
        ),
        processor,
        token_types="token_type_ids",
        embedding_gain=0.1,
    ),
}
