"""LFM2 MoE: two of five experts behind one and no dense layers, corrected and not, normalised and not."""

from typing import Any

from transformers import Lfm2MoeConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "moe_intermediate_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "corrected, scaled": Lfm2MoeConfig(
        **SMALL,
        layer_types=["conv", "full_attention", "conv"],
        num_dense_layers=1,
        routed_scaling_factor=1.5,
    ),
    "uncorrected, weights as they are, biases, untied": Lfm2MoeConfig(
        **{**SMALL, "weights_gain": 0.9},
        layer_types=["full_attention", "conv", "conv"],
        num_dense_layers=0,
        use_expert_bias=False,
        norm_topk_prob=False,
        conv_L_cache=4,
        conv_bias=True,
        tie_word_embeddings=False,
    ),
}
