"""Jamba: attention and experts in orders unlike the published ones, two of five experts, none at all."""

from typing import Any

from transformers import JambaConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 3,
    "expert_layer_offset": 2,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "mamba_d_state": 7,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "weights_gain": 0.9,  # with 1.2 transformers' own bfloat16 keeps 90 % of the best tokens
}
CASES = {
    "two of five": JambaConfig(**SMALL),
    "no experts, biases, tied": JambaConfig(
        **{**SMALL, "num_experts": 1, "num_experts_per_tok": 1, "num_hidden_layers": 4},
        mamba_d_conv=3,
        mamba_dt_rank=5,
        mamba_expand=3,
        mamba_proj_bias=True,
        mamba_conv_bias=False,
        tie_word_embeddings=True,
    ),
    "attention and experts first": JambaConfig(
        **{**SMALL, "num_hidden_layers": 3, "attn_layer_offset": 0, "expert_layer_period": 2, "expert_layer_offset": 0}
    ),
}
