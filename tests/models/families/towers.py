"""The parts of vision-language configurations that are there to be ignored, as small as can be."""

from typing import Any

SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
QWEN: dict[str, Any] = {
    "hidden_size": 16,
    "depth": 1,
    "intermediate_size": 12,
    "num_heads": 2,
    "out_hidden_size": 36,
    "patch_size": 4,
}
