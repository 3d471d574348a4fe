"""Mistral: a window in all layers or in none."""

from typing import Any

from transformers import MistralConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CASES = {
    "window everywhere": MistralConfig(**SMALL, sliding_window=11),
    "no window, tied": MistralConfig(**SMALL, sliding_window=None, tie_word_embeddings=True),
}
