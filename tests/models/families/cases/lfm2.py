"""LFM2: kernels of 3 and 4, biases, sizes of the MLP worked out and as they are, tied and untied."""

from typing import Any

from transformers import Lfm2Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
}
CASES = {
    "conv, conv, attention, conv": Lfm2Config(
        **SMALL,
        layer_types=["conv", "conv", "full_attention", "conv"],
        block_ffn_dim_multiplier=1.3,
        block_multiple_of=7,
    ),
    "attention by index, kernel 4, biases, untied": Lfm2Config(
        **SMALL,
        full_attn_idxs=[0, 3],
        conv_L_cache=4,
        conv_bias=True,
        block_auto_adjust_ff_dim=False,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    ),
}
