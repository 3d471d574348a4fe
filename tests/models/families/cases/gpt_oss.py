"""gpt-oss: sinks, two of five experts, YaRN without truncation and no scaling, windows in another order."""

from typing import Any

from transformers import GptOssConfig

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 28,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
CALM: dict[str, Any] = {"weights_gain": 1.0}  # experts change over: transformers' own bfloat16 run is as far off
CASES = {
    "yarn": GptOssConfig(
        **SMALL,
        **CALM,
        sliding_window=11,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 40,
        },
    ),
    "no biases in attention, tied": GptOssConfig(
        **SMALL,
        sliding_window=5,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_bias=False,
        tie_word_embeddings=True,
    ),
}
