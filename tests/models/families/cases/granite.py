"""Granite: all four multipliers, biases, tied and untied."""

from typing import Any

from transformers import GraniteConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "embedding_multiplier": 2.3,
    "logits_scaling": 3.0,
    "residual_multiplier": 0.71,
    "attention_multiplier": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CASES = {
    "multipliers": GraniteConfig(**SMALL),
    "biases, tied": GraniteConfig(**SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
}
