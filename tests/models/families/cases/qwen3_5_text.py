"""Qwen3.5's text model: several value heads per key head and one, kernels of 3 and 4, rope of a third of the head."""

from typing import Any

from transformers.models.qwen3_5 import Qwen3_5TextConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 7,
    "linear_value_head_dim": 5,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
ROPE = {
    "rope_type": "default",
    "rope_theta": 5000.0,
    "partial_rotary_factor": 0.17,
    "mrope_interleaved": True,
    "mrope_section": [1, 1, 0],
}
CASES = {
    "attention in the middle": Qwen3_5TextConfig(
        **SMALL, layer_types=["linear_attention", "full_attention", "linear_attention"], rope_parameters=ROPE
    ),
    "one value head per key head, tied, biases": Qwen3_5TextConfig(
        **{**SMALL, "linear_num_key_heads": 6, "full_attention_interval": 2},
        linear_conv_kernel_dim=3,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
}
