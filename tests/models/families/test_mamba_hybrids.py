"""Mamba-2 hybrids: the spellings that transformers does not write any more, what is refused, what is kept once."""

from collections import Counter
from math import inf
from typing import Any

import pytest
import torch

from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.weights import Weights

SIZES = {"vocab_size": 30, "hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 3, "adapter_rank": 2}
BAMBA = SIZES | {"model_type": "bamba", "num_hidden_layers": 3, "mamba_n_heads": 3, "mamba_d_state": 4}
GRANITE = BAMBA | {"model_type": "granitemoehybrid"}
FALCON = BAMBA | {"model_type": "falcon_h1", "mamba_d_ssm": 18}
NEMOTRON = SIZES | {"model_type": "nemotron_h", "num_key_value_heads": 1, "mamba_num_heads": 8, "ssm_state_size": 4}
ZAMBA = SIZES | {"model_type": "zamba2", "num_hidden_layers": 5, "num_mem_blocks": 2, "n_mamba_heads": 3}
HYBRIDS = {"layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid", "hybrid"]}


@pytest.mark.parametrize(
    ("config", "spellings"),
    [
        (BAMBA, [{"attn_layer_indices": [1]}, {"layer_types": ["linear_attention", "full_attention", "mamba"]}]),
        (BAMBA, [{}, {"attn_layer_indices": []}, {"layers_block_type": ["mamba"] * 3}]),
        (BAMBA, [{}, {"time_step_limit": [0.0, inf]}, {"time_step_limit": [0, {"__float__": "Infinity"}]}]),
        (BAMBA, [{}, {"mamba_d_head": "auto"}, {"mamba_d_head": 8}]),
        (BAMBA, [{}, {"partial_rotary_factor": 0.5}, {"attn_rotary_emb": 2}]),
        (
            GRANITE,
            [
                {"layer_types": ["attention", "mamba", "mamba"]},
                {"layers_block_type": ["full_attention", "linear_attention", "mamba"]},
            ],
        ),
        (GRANITE, [{}, {"position_embedding_type": "nope"}, {"position_embedding_type": None}]),
        (
            NEMOTRON,
            [
                {"hybrid_override_pattern": "ME*-", "num_hidden_layers": 4},
                {"layers_block_type": ["mamba", "moe", "attention", "mlp"]},
                {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"]},
            ],
        ),
        (
            NEMOTRON | {"hybrid_override_pattern": "M*"},
            [
                {"n_groups": 2, "conv_kernel": 3, "head_dim": 5, "time_step_min": 0.1, "use_conv_bias": False},
                {
                    "mamba_n_groups": 2,
                    "mamba_d_conv": 3,
                    "attention_head_dim": 5,
                    "mamba_dt_min": 0.1,
                    "mamba_conv_bias": False,
                },
            ],
        ),
        (
            ZAMBA,
            [
                {"layers_block_type": ["m", "g", "m", "g", "g"]},
                {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"]},
                {"layer_types": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"]},
            ],
        ),
    ],
)
def test_spellings_mean_the_same(config: dict[str, Any], spellings: list[dict[str, Any]]) -> None:
    first, *others = (read_model(config | spelling) for spelling in spellings)
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BAMBA | {"attn_layer_indices": [3]}, r"attn_layer_indices must be a list of .* 0 to 2, got \[3\]"),
        (BAMBA | {"attn_layer_indices": [1], "layer_types": ["mamba"] * 3}, "attn_layer_indices"),
        (BAMBA | {"layer_types": ["mamba", "conv", "mamba"]}, r"layer_types\[1\] must be one of .* got 'conv'"),
        (BAMBA | {"attn_rotary_emb": 6}, "attn_rotary_emb is 6"),
        (BAMBA | {"mamba_d_head": 9}, "mamba_n_heads must be 24 channels"),
        (BAMBA | {"time_step_limit": [0.0, "inf"]}, "time_step_limit must be two numbers"),
        (BAMBA | {"hidden_act": "gelu"}, "hidden_act must be one of silu, swish, got 'gelu'"),
        (GRANITE | {"position_embedding_type": "alibi"}, "position_embedding_type must be one of nope, rope"),
        (GRANITE | {"normalization_function": "layernorm"}, "normalization_function is 'layernorm'"),
        (FALCON | {"attn_layer_indices": [1]}, r"attn_layer_indices is \[1\]"),
        (FALCON | {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers must be a list of 5 entries"),
        (
            FALCON | {"mlp_multipliers": [1.0, "x"]},
            r"mlp_multipliers\[1\] must be a number .*, got 'x'",
        ),
        (NEMOTRON | {"hybrid_override_pattern": "MX"}, r"hybrid_override_pattern\[1\] must be one of .* got 'X'"),
        (NEMOTRON | {"hybrid_override_pattern": "M", "num_hidden_layers": 2}, "a list of 2 entries"),
        (NEMOTRON, "hybrid_override_pattern is missing"),
        (NEMOTRON | {"hybrid_override_pattern": "M", "time_step_limit": [0.1, 1.0]}, "time_step_limit must be from 0"),
        (NEMOTRON | {"hybrid_override_pattern": "M", "sliding_window": 8}, "sliding_window is 8"),
        (ZAMBA | {"layers_block_type": ["h"] * 5}, r"layers_block_type\[0\] must be one of .* got 'h'"),
        (ZAMBA | HYBRIDS | {"use_long_context": True}, "use_long_context is True"),
        (ZAMBA | HYBRIDS | {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        (
            ZAMBA | HYBRIDS | {"num_key_value_heads": 1, "use_shared_attention_adapter": True},
            "num_key_value_heads must be 3",
        ),
    ],
)
def test_what_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_model(config)


class Counting(dict[str, torch.Tensor]):
    """Tensors by name, and how often each was read."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.reads: Counter[str] = Counter()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.reads[name] += 1
        return super().__getitem__(name)


@pytest.mark.parametrize("adapted", [False, True])
def test_shared_blocks_are_kept_once(adapted: bool) -> None:
    model = read_model(ZAMBA | HYBRIDS | {"use_shared_attention_adapter": adapted})
    source = Counting({name: torch.zeros(shape) for name, shape in model.tensors().items()})
    Decoder(model, Weights(source, torch.float32, torch.device("cpu")))
    assert source.reads == Counter(dict.fromkeys(source, 1))
    shared = {name.split(".")[2] for name in source if "shared_transformer" in name}
    assert shared == {"0", "2"}
