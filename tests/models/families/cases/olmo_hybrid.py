"""OLMo Hybrid: no rope as published and with one, negative eigenvalues and none, grouped heads, odd orders."""

from typing import Any

from transformers import OlmoHybridConfig

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
    "no rope, sizes by default": OlmoHybridConfig(
        **{**SMALL, "weights_gain": 0.7}, rope_parameters={"rope_type": "default", "rope_theta": None}
    ),
    "rope, attention first, tied": OlmoHybridConfig(
        **SMALL,
        layer_types=["full_attention", "linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=3,
        linear_num_value_heads=6,
        linear_key_head_dim=7,
        linear_value_head_dim=5,
        linear_conv_kernel_dim=3,
        linear_allow_neg_eigval=False,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    ),
}
