"""RecurrentGemma: windows smaller than a block, a width of its own, partial rope, soft caps that matter."""

from typing import Any

from transformers import RecurrentGemmaConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 40,  # its root is no bfloat16
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "attention_window_size": 5,
    "eos_token_id": 1,
}
CASES = {
    "attention last": RecurrentGemmaConfig(**SMALL),
    "attention first, wide, biases": RecurrentGemmaConfig(
        **{**SMALL, "num_key_value_heads": 5, "attention_window_size": 11},
        block_types=["attention", "recurrent"],
        lru_width=45,
        conv1d_width=3,
        attention_bias=True,
        logits_soft_cap=5.0,
        tie_word_embeddings=False,
    ),
}
