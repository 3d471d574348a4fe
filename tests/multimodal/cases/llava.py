"""LLaVA: CLIP without its class token, several layers of it, SigLIP with all features, and Pixtral."""

from functools import partial
from typing import Any

from transformers import LlavaConfig, LlavaProcessor, ProcessorMixin
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from ..case import TEXT, VIT, Case
from ..tiny_tokenizer import IMAGE, tiny_tokenizer
from .mistral3 import PIXTRAL
from .mistral3 import processor as rows


def processor(clip: bool, strategy: str) -> ProcessorMixin:
    tokenizer = tiny_tokenizer("<image>", image_token="<image>")
    images = (
        CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
        if clip
        else SiglipImageProcessorPil(size={"height": 16, "width": 16})
    )
    llava: Any = LlavaProcessor
    made: ProcessorMixin = llava(
        images,
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy=strategy,
        chat_template=tokenizer.chat_template,
        num_additional_image_tokens=int(clip),
    )
    return made


CLIP = {**VIT, "model_type": "clip_vision_model", "image_size": 16, "patch_size": 4}
CASES = {
    "CLIP": Case(
        LlavaConfig(text_config={**TEXT, "model_type": "llama"}, vision_config=CLIP, image_token_index=IMAGE),
        partial(processor, True, "default"),
    ),
    "layers of CLIP with its class token": Case(
        LlavaConfig(
            text_config={**TEXT, "model_type": "mistral", "sliding_window": 33},
            vision_config=CLIP,
            vision_feature_layer=[-2, -1],
            vision_feature_select_strategy="full",
            multimodal_projector_bias=False,
            image_token_index=IMAGE,
        ),
        partial(processor, True, "full"),
    ),
    "SigLIP": Case(
        LlavaConfig(
            text_config={**TEXT, "model_type": "qwen2"},
            vision_config={**CLIP, "model_type": "siglip_vision_model"},
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            image_token_index=IMAGE,
        ),
        partial(processor, False, "full"),
    ),
    "Pixtral": Case(
        LlavaConfig(
            text_config={**TEXT, "model_type": "mistral", "sliding_window": None},
            vision_config=PIXTRAL,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            image_token_index=IMAGE,
        ),
        partial(rows, 20, 1, ("[IMG_BREAK]", "[IMG_END]")),
    ),
}
