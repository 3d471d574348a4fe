"""Falcon Mamba: norms on dt, b and c with an epsilon that matters; `expand` does not say the inner size."""

from typing import Any

from transformers import FalconMambaConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "state_size": 7,
    "eos_token_id": 1,
    "mixer_rms_eps": 0.1,
}
INNER: dict[str, Any] = {"expand": 16, "intermediate_size": 60}
CASES = {
    "tied": FalconMambaConfig(**SMALL),
    "untied, inner size of its own": FalconMambaConfig(
        **SMALL, **INNER, conv_kernel=3, use_bias=True, tie_word_embeddings=False
    ),
}
