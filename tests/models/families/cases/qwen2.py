"""Qwen2: a window that is present and off, or on from a layer on; YaRN; tied."""

from typing import Any

from transformers import Qwen2Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "window off, tied": Qwen2Config(**SMALL, sliding_window=5, max_window_layers=0, tie_word_embeddings=True),
    "window from the second layer on, yarn": Qwen2Config(
        **SMALL,
        use_sliding_window=True,
        sliding_window=11,
        max_window_layers=1,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
}
