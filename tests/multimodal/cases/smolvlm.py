"""SmolVLM: tied, with pictures that are not cut."""

from transformers import Idefics3Processor, SmolVLMConfig
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

from ..case import Case
from ..tiny_tokenizer import IMAGE
from .idefics3 import TEXT_MODEL, VISION, processor


class WithoutVideos(Idefics3Processor):
    """SmolVLM's own processor demands packages that videos need."""

    global_image_token = "<global-img>"
    replace_image_token = SmolVLMProcessor.replace_image_token


CASES = {
    "whole": Case(
        SmolVLMConfig(
            text_config=TEXT_MODEL,
            vision_config={**VISION, "image_size": 24},
            image_token_id=IMAGE,
            tie_word_embeddings=True,
            pad_token_id=0,
        ),
        lambda: processor(WithoutVideos, SmolVLMImageProcessorPil, size={"longest_edge": 32}, do_image_splitting=False),
        embedding_gain=0.3,
    ),
}
