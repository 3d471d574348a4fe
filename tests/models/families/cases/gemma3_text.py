"""Gemma 3: a rope per kind of layer, scaled for full attention; another order; logits capped."""

from typing import Any

from transformers import Gemma3TextConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "query_pre_attn_scalar": 7,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
EVERY_THIRD_FULL: dict[str, Any] = {"sliding_window_pattern": 3}
CASES = {
    "every third full, tied": Gemma3TextConfig(**SMALL, **EVERY_THIRD_FULL, sliding_window=11),
    "scaled rope, biases, untied": Gemma3TextConfig(
        **SMALL,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
        attention_bias=True,
        final_logit_softcapping=7.0,
        tie_word_embeddings=False,
    ),
}
