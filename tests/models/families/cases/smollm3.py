"""SmolLM3: layers without rope, by interval and by list; with windows there; biases; tied and untied."""

from typing import Any

from transformers import SmolLM3Config

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
CASES = {
    "every second without rope, tied": SmolLM3Config(**SMALL, no_rope_layer_interval=2),
    "windows without rope, biases": SmolLM3Config(
        **SMALL,
        no_rope_layers=[0, 1, 0],
        use_sliding_window=True,
        sliding_window=11,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "windows elsewhere than without rope": SmolLM3Config(
        **SMALL,
        no_rope_layers=[1, 0, 1],
        use_sliding_window=True,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
}
