"""Gemma 2: sliding and full layers in turn and in another order, with and without soft caps, a scale of its own."""

from typing import Any

from transformers import Gemma2Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "query_pre_attn_scalar": 7,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CASES = {
    "capped, tied": Gemma2Config(**SMALL, sliding_window=11, attn_logit_softcapping=2.0, final_logit_softcapping=7.0),
    "uncapped, biases, untied": Gemma2Config(
        **SMALL,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        attention_bias=True,
        hidden_activation="gelu",
        tie_word_embeddings=False,
    ),
}
