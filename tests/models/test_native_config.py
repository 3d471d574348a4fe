"""The native configuration: reads back what it writes, and names what is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hybrid.models.native_config import NativeConfig

VALID: dict[str, Any] = {
    "model_type": "hybrid_native",
    "vocab_size": 32,
    "hidden_size": 24,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 5,
    "intermediate_size": 40,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "mamba_state_size": 6,
    "mamba_n_groups": 2,
    "mamba_conv_kernel": 4,
    "layers": [
        {"mixer": "mamba2", "mlp": True},
        {"mixer": "sliding", "mlp": False},
        {"mixer": "full", "mlp": True},
    ],
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "image_token_id": 2,
    "torch_dtype": "float32",
    "vision_config": {
        "image_size": 16,
        "patch_size": 4,
        "merge_size": 2,
        "hidden_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "layer_norm_eps": 1e-6,
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """VALID with the value at a dotted path replaced."""
    data = copy.deepcopy(VALID)
    *parents, key = path.split(".")
    entry: Any = data
    for parent in parents:
        entry = entry[int(parent)] if parent.isdigit() else entry[parent]
    entry[key] = value
    return data


def test_round_trip_and_derived_sizes() -> None:
    config = NativeConfig.from_dict(VALID)
    assert NativeConfig.from_dict(config.to_dict()) == config
    assert [layer.mixer for layer in config.layers] == ["mamba2", "sliding", "full"]
    assert config.mamba_inner_size == 32
    assert config.mamba_conv_dim == 32 + 2 * 2 * 6
    assert config.vision_config is not None
    assert (config.vision_config.num_patches, config.vision_config.num_image_tokens) == (16, 4)


def test_a_model_without_pictures() -> None:
    config = NativeConfig.from_dict(changed("vision_config", None))
    assert config.vision_config is None
    assert NativeConfig.from_dict(config.to_dict()) == config


def test_foreign_keys_are_ignored() -> None:
    assert NativeConfig.from_dict({**VALID, "transformers_version": "5.0"}) == NativeConfig.from_dict(VALID)


@pytest.mark.parametrize("key", sorted(VALID))
def test_a_missing_key_is_named(key: str) -> None:
    data = {name: value for name, value in VALID.items() if name != key}
    with pytest.raises(ValueError, match=f"{key}.*(missing|None)"):
        NativeConfig.from_dict(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model_type", "llama", "model_type.*'llama'"),
        ("layers", [], r"layers.*\[\]"),
        ("layers.1.mixer", "rwkv", r"layers\[1\].mixer.*'rwkv'"),
        ("layers.2.mlp", 1, r"layers\[2\].mlp.*1"),
        ("hidden_size", 0, "hidden_size.*0"),
        ("hidden_size", True, "hidden_size.*True"),
        ("sliding_window", -3, "sliding_window.*-3"),
        ("sliding_window", 2**70, f"sliding_window must be between 1 and .*{2**70}"),
        ("max_position_embeddings", 10**12, "max_position_embeddings must be between 1 and .*1000000000000"),
        ("num_key_value_heads", 3, "num_attention_heads.*num_key_value_heads"),
        ("mamba_n_groups", 3, "mamba_num_heads.*mamba_n_groups"),
        ("mamba_conv_kernel", 1, "mamba_conv_kernel.*1"),
        ("head_dim", 7, "head_dim.*7"),
        ("rope_theta", float("inf"), "rope_theta.*inf"),
        ("image_token_id", 32, "image_token_id.*32"),
        ("bos_token_id", -1, "bos_token_id.*-1"),
        ("torch_dtype", "int8", "torch_dtype.*'int8'"),
        ("vision_config.image_size", 20, "image_size.*20"),
        ("vision_config.num_attention_heads", 5, "hidden_size.*num_attention_heads"),
        ("vision_config.layer_norm_eps", 0, "layer_norm_eps.*0"),
        ("vision_config", [], "vision_config"),
    ],
)
def test_an_impossible_value_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeConfig.from_dict(changed(path, value))
