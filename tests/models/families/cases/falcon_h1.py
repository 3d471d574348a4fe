"""Falcon-H1: every multiplier, norms before the gate, after it and none, biases, `mamba_d_ssm` and `mamba_expand`."""

from typing import Any

from transformers import FalconH1Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "mamba_d_ssm": 42,
    "mamba_n_heads": 6,
    "mamba_d_state": 10,
    "mamba_n_groups": 3,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 2.7,
    "lm_head_multiplier": 0.4,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.8, 1.1, 0.7, 1.3, 0.9],
    "mlp_multipliers": [0.9, 0.6],
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "no norm": FalconH1Config(
        **SMALL, mamba_rms_norm=False, rope_parameters={"rope_type": "default", "rope_theta": 1e11}
    ),
    "norm after the gate, biases": FalconH1Config(
        **SMALL,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        attention_bias=True,
        mlp_bias=True,
        mamba_proj_bias=True,
        tie_word_embeddings=True,
    ),
    "norm before the gate, expand, biases elsewhere": FalconH1Config(
        **{**SMALL, "mamba_d_ssm": None, "mamba_d_conv": 4, "ssm_multipliers": None, "mlp_multipliers": None},
        mamba_expand=1,
        mamba_rms_norm=True,
        mamba_norm_before_gate=True,
        projectors_bias=True,
        mamba_conv_bias=False,
        time_step_limit=[0.9, 1.6],
    ),
}
