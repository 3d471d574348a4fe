"""Nemotron-H: every kind of layer in odd orders; groups of experts, a latent space for them, biases, step minimum."""

from typing import Any

from transformers import NemotronHConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "mamba_num_heads": 6,
    "mamba_head_dim": 7,
    "ssm_state_size": 10,
    "n_groups": 3,
    "conv_kernel": 3,
    "chunk_size": 16,
    "moe_intermediate_size": 22,
    "moe_shared_expert_intermediate_size": 26,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def layers(pattern: str) -> list[str]:
    """As transformers 5 spells them."""
    return [KINDS[character] for character in pattern]


CASES = {
    "no experts": NemotronHConfig(**SMALL, layers_block_type=layers("*-MM-*M")),
    "two of five experts": NemotronHConfig(
        **{**SMALL, "conv_kernel": 4},
        layers_block_type=layers("EM*ME"),
        n_routed_experts=5,
        norm_topk_prob=False,
        routed_scaling_factor=1.7,
        use_conv_bias=False,
    ),
    "groups of experts in a latent space, biases": NemotronHConfig(
        **SMALL,
        layers_block_type=layers("M*E-"),
        n_routed_experts=6,
        n_group=3,
        topk_group=2,
        moe_latent_size=14,
        mlp_bias=True,
        use_bias=True,
        time_step_min=0.9,
        routed_scaling_factor=2.5,
    ),
}
