"""Olmo 3: norms after the branches, YaRN in full layers only, grouped heads, biases, tied and untied."""

from typing import Any

from transformers import Olmo3Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
CASES = {
    "plain": Olmo3Config(**SMALL, sliding_window=11),
    "yarn, biases, tied": Olmo3Config(
        **SMALL,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
        },
        attention_bias=True,
        tie_word_embeddings=True,
    ),
}
