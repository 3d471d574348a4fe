"""Cohere2: neighbouring pairs rotate in sliding layers, none in full ones; biases; tied and untied."""

from typing import Any

from transformers import Cohere2Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "logit_scale": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
EVERY_SECOND_FULL: dict[str, Any] = {"sliding_window_pattern": 2}
CASES = {
    "every second full, tied": Cohere2Config(**SMALL, **EVERY_SECOND_FULL, sliding_window=11),
    "biases, untied": Cohere2Config(
        **SMALL,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 400.0},
        tie_word_embeddings=False,
    ),
}
