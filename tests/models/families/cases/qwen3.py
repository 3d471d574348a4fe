"""Qwen3: norms per head, biases, windows in layers of any order."""

from typing import Any

from transformers import Qwen3Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "tied": Qwen3Config(**SMALL, tie_word_embeddings=True),
    "biases, windows between": Qwen3Config(
        **SMALL,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}
