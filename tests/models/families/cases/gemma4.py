"""Gemma 4 as published: the text decoder under `text_config`, here with shared caches, per-layer inputs and experts."""

from transformers import Gemma4Config

from .gemma4_text import FULL, SLIDING, SMALL

CASES = {
    "everything": Gemma4Config(
        text_config={
            **SMALL,
            "model_type": "gemma4_text",
            "num_hidden_layers": 5,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 7,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 22,
        },
        vision_config={
            "model_type": "gemma4_vision",
            "hidden_size": 16,
            "intermediate_size": 12,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
            "position_embedding_size": 16,
        },
        audio_config=None,
        image_token_id=200,  # in no text: transformers would look up the padding instead
    ),
}
