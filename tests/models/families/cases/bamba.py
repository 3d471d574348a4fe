"""Bamba: attention first, last and between; groups, kernels, biases, step limits, tied and untied."""

from typing import Any

from transformers import BambaConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 12,
    "attn_layer_indices": [1, 3],
    "mamba_n_heads": 6,
    "mamba_d_state": 10,
    "mamba_n_groups": 3,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 16,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "two of four attend": BambaConfig(**SMALL),
    "biases, tied, one group": BambaConfig(
        **{**SMALL, "attn_layer_indices": [0], "num_hidden_layers": 3, "mamba_n_groups": 1, "mamba_d_conv": 4},
        attention_bias=True,
        mlp_bias=True,
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        mamba_expand=1,
        time_step_limit=[0.9, 1.6],
        tie_word_embeddings=True,
    ),
    "no attention": BambaConfig(**{**SMALL, "attn_layer_indices": None, "num_hidden_layers": 2}),
}
