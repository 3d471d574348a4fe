"""Zamba2: one to three shared blocks, used in odd orders; rope, adapters of attention, biases, step minimum."""

from typing import Any

from transformers import Zamba2Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 6,
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid", "mamba", "hybrid"],
    "num_attention_heads": 6,
    "num_mem_blocks": 2,
    "adapter_rank": 5,
    "n_mamba_heads": 9,
    "mamba_d_state": 10,
    "mamba_ngroups": 3,
    "mamba_d_conv": 3,
    "chunk_size": 16,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "weights_gain": 0.8,  # blocks without residuals amplify: at 1.2 transformers' own float32 is off by 1e-4
}
CASES = {
    "two blocks": Zamba2Config(**{**SMALL, "num_key_value_heads": 3}),
    "three blocks, rope, adapters of attention, biases": Zamba2Config(
        **{
            **SMALL,
            "num_mem_blocks": 3,
            "mamba_d_conv": 4,
            "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid", "hybrid"],
        },
        use_mem_rope=True,
        use_shared_attention_adapter=True,
        add_bias_linear=True,
        time_step_min=0.3,
    ),
    "one block": Zamba2Config(
        **{**SMALL, "num_mem_blocks": 1, "num_hidden_layers": 3, "layers_block_type": ["hybrid", "hybrid", "mamba"]},
        use_mem_rope=True,
        hidden_act="silu",
    ),
}
