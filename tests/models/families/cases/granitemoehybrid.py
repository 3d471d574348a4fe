"""Granite 4.0 H: with experts and without, with rope and without, multipliers, groups, kernels, biases."""

from typing import Any

from transformers import GraniteMoeHybridConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 22,
    "shared_intermediate_size": 26,
    "num_hidden_layers": 4,
    "layer_types": ["attention", "mamba", "mamba", "attention"],
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 9,
    "mamba_d_state": 10,
    "mamba_n_groups": 3,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.5,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "two of five experts, nope": GraniteMoeHybridConfig(**SMALL, tie_word_embeddings=True),
    "shared MLP alone, rope, biases": GraniteMoeHybridConfig(
        **{
            **SMALL,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            "mamba_d_conv": 4,
            "head_dim": 10,
        },
        position_embedding_type="rope",
        attention_bias=True,
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        time_step_limit=[0.9, 1.6],
    ),
}
