"""Qwen2.5-VL: a Qwen2 with mrope, whose tensors are named as if there were no images; saved with `text_config`."""

from transformers import Qwen2_5_VLConfig

from .. import towers
from . import llama

TEXT = {key: value for key, value in llama.SMALL.items() if key != "head_dim"}
CASES = {
    "untied": Qwen2_5_VLConfig(
        image_token_id=3,
        text_config={
            **TEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 1]},
        },
        vision_config={**towers.QWEN, "fullatt_block_indexes": [0]},
    ),
}
