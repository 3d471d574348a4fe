"""Qwen3.5's MoE text model: two of five experts and a shared one in every layer."""

from transformers.models.qwen3_5_moe import Qwen3_5MoeTextConfig

from .qwen3_5_text import ROPE, SMALL

EXPERTS = {
    **{key: value for key, value in SMALL.items() if key != "intermediate_size"},
    "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 14,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
CASES = {
    "attention first": Qwen3_5MoeTextConfig(
        **{**EXPERTS, "weights_gain": 0.9},
        layer_types=["full_attention", "linear_attention", "linear_attention"],
        rope_parameters=ROPE,
    ),
    "tied": Qwen3_5MoeTextConfig(**{**EXPERTS, "full_attention_interval": 2}, tie_word_embeddings=True),
}
