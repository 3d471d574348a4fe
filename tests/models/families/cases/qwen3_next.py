"""Qwen3-Next: two and one value heads per key head, kernels of 3 and 4, dense layers between experts, odd orders."""

from typing import Any

from transformers import Qwen3NextConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 14,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "every third layer": Qwen3NextConfig(
        **{**SMALL, "num_hidden_layers": 3, "full_attention_interval": 3, "weights_gain": 0.9}
    ),
    "attention first, dense layers, biases": Qwen3NextConfig(
        **{**SMALL, "linear_num_value_heads": 3},
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
        linear_conv_kernel_dim=3,
        mlp_only_layers=[1],
        norm_topk_prob=False,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
    ),
}
