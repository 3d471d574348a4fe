"""Gemma 4, text: windows smaller than a block, heads of two sizes, shared caches, experts, per-layer inputs."""

from typing import Any

from transformers import Gemma4TextConfig

SLIDING, FULL = "sliding_attention", "full_attention"
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "vocab_size_per_layer_input": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "global_head_dim": 12,
    "num_global_key_value_heads": 2,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 5,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 100.0},
        FULL: {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    },
}
CASES = {
    "plain, biases": Gemma4TextConfig(
        **SMALL, num_hidden_layers=4, layer_types=[SLIDING, FULL, SLIDING, FULL], attention_bias=True
    ),
    "experts, values are keys, softcap": Gemma4TextConfig(
        **SMALL,
        num_hidden_layers=4,
        layer_types=[SLIDING, SLIDING, FULL, FULL],
        attention_k_eq_v=True,
        enable_moe_block=True,
        num_experts=5,
        top_k_experts=2,
        moe_intermediate_size=22,
        final_logit_softcapping=3.0,
    ),
    "shared caches, per-layer inputs": Gemma4TextConfig(
        **{**SMALL, "hidden_size_per_layer_input": 7},
        num_hidden_layers=6,
        layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
    ),
}
