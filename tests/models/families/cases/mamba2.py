"""Mamba-2: several groups, step sizes clamped, chunks of an odd size, tied and untied, biases, kernel 3."""

from typing import Any

from transformers import Mamba2Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_heads": 6,
    "head_dim": 10,
    "state_size": 7,
    "n_groups": 3,
    "chunk_size": 13,
    "eos_token_id": 1,
}
CASES = {
    "groups": Mamba2Config(**SMALL),
    "clamped, biases, tied, kernel 3": Mamba2Config(
        **SMALL,
        use_bias=True,
        use_conv_bias=False,
        conv_kernel=3,
        time_step_limit=(0.01, 0.2),
        layer_norm_epsilon=0.01,
        tie_word_embeddings=True,
        residual_in_fp32=False,
    ),
}
