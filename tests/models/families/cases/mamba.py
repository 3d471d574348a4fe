"""Mamba: no attention at all; tied and untied, biases, kernel 3, an inner size that `expand` does not say."""

from typing import Any

from transformers import MambaConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "state_size": 7,
    "eos_token_id": 1,
}
INNER: dict[str, Any] = {"expand": 16, "intermediate_size": 60}
CASES = {
    "plain": MambaConfig(**SMALL),
    "biases, untied, kernel 3": MambaConfig(
        **SMALL, use_bias=True, use_conv_bias=False, conv_kernel=3, time_step_rank=5, tie_word_embeddings=False
    ),
    "inner size of its own": MambaConfig(**SMALL, **INNER, residual_in_fp32=False),
}
