"""Qwen3 MoE: two of five experts, normalised and not, dense layers between."""

from typing import Any

from transformers import Qwen3MoeConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "moe_intermediate_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "two of five": Qwen3MoeConfig(**SMALL, norm_topk_prob=True),
    "dense layers, weights as they are": Qwen3MoeConfig(**SMALL, mlp_only_layers=[1], tie_word_embeddings=True),
}
