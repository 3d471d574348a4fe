"""Checkpoints of hybrid families as published, where they differ from what transformers saves; keys of old files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hybrid.models.blueprint.parts import MLP, Attention
from hybrid.models.blueprint.recurrent import ShortConv
from hybrid.models.families import read_model
from hybrid.runner.loading import load
from tests.models.forward import chunked_logits

from .cases import lfm2, olmo_hybrid, qwen3_5_moe_text, qwen3_next, qwen3_vl_moe
from .oracle import Oracle, rewrite, saved_tensors

TOKENS = [5, 3, 60, 7, 7, 9, 41, 2, 88, 30, 12]


def assert_same_logits(oracle: Oracle) -> None:
    decoder = load(oracle.folder, torch.float32).decoder
    (logits,) = chunked_logits(decoder, [TOKENS], [[len(TOKENS)]])
    torch.testing.assert_close(logits, oracle.logits(TOKENS), rtol=1e-4, atol=1e-4)


def test_qwen3_5_stacks_its_experts_beside_the_tensors_of_a_vision_model(tmp_path: Path) -> None:
    oracle = Oracle(qwen3_5_moe_text.CASES["tied"], tmp_path)
    tensors = saved_tensors(tmp_path)
    experts = {name for name in tensors if ".experts." in name}
    for prefix in {name.split(".experts.")[0] for name in experts}:
        stacks = {
            part: torch.stack([tensors[f"{prefix}.experts.{i}.{part}.weight"] for i in range(5)])
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        tensors[f"{prefix}.experts.gate_up_proj"] = torch.cat((stacks["gate_proj"], stacks["up_proj"]), dim=1)
        tensors[f"{prefix}.experts.down_proj"] = stacks["down_proj"]
    renamed = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in tensors.items()
        if name not in experts
    }
    rewrite(tmp_path, renamed | {"mtp.fc.weight": torch.ones(3, 3)})
    assert_same_logits(oracle)


def test_qwen3_vl_transposes_its_experts(tmp_path: Path) -> None:
    oracle = Oracle(qwen3_vl_moe.CASES["dense layer between"], tmp_path)
    tensors = saved_tensors(tmp_path)
    experts = [name for name in tensors if ".experts." in name]
    assert len(experts) == 4
    rewrite(tmp_path, tensors | {name: tensors[name].transpose(1, 2).contiguous() for name in experts})
    assert_same_logits(oracle)


@pytest.mark.parametrize("case", list(olmo_hybrid.CASES))
def test_olmo_hybrid_keeps_three_convolutions_and_names_its_norms(tmp_path: Path, case: str) -> None:
    oracle = Oracle(olmo_hybrid.CASES[case], tmp_path)
    tensors = saved_tensors(tmp_path)
    for name, tensor in oracle.model.state_dict().items():
        at, _, last = name.rpartition(".linear_attn.")
        if last == "conv1d.weight":
            config: Any = oracle.model.config
            keys = config.linear_num_key_heads * config.linear_key_head_dim
            parts = tensor.split([keys, keys, tensor.shape[0] - 2 * keys])
            for part, convolution in zip("qkv", parts):
                tensors[f"{at}.linear_attn.{part}_conv1d.weight"] = convolution
    # layers that attend call their norms as transformers does
    attending = {name.split(".self_attn")[0] for name in tensors if ".self_attn." in name}
    for at in attending:
        tensors[f"{at}.post_attention_layernorm.weight"] = tensors.pop(f"{at}.feedforward_layer_norm.weight")
    rewrite(tmp_path, tensors)
    assert_same_logits(oracle)


def config_of(config: Any, **changes: Any) -> dict[str, Any]:
    """The keys of a config.json; None takes a key away."""
    return {key: value for key, value in {**config.to_dict(), **changes}.items() if value is not None}


def test_old_keys_of_qwen3_next() -> None:
    new = config_of(qwen3_next.CASES["every third layer"])
    old = config_of(
        qwen3_next.CASES["every third layer"],
        layer_types=None,
        rope_parameters=None,
        full_attention_interval=3,
        rope_theta=10000,
        partial_rotary_factor=0.25,
    )
    assert read_model(old) == read_model(new)


def test_old_keys_of_lfm2() -> None:
    new = config_of(lfm2.CASES["attention by index, kernel 4, biases, untied"])
    old = config_of(
        lfm2.CASES["attention by index, kernel 4, biases, untied"],
        layer_types=None,
        rope_parameters=None,
        tie_word_embeddings=None,
        full_attn_idxs=[0, 3],
        block_ff_dim=64,
        intermediate_size=9999,
        rope_theta=5000.0,
        tie_embedding=False,
    )
    assert read_model(old) == read_model(new)


def test_the_mlp_of_lfm2_has_two_thirds_of_what_is_written() -> None:
    """LFM2-1.2B: 12288 is written, 8192 meant."""
    config = config_of(lfm2.CASES["conv, conv, attention, conv"], block_ff_dim=12288, block_multiple_of=256)
    parts = [
        part
        for layer in read_model({**config, "block_ffn_dim_multiplier": 1.0}).decoder.layers
        for part in layer.parts()
    ]
    assert {part.intermediate_size for part in parts if isinstance(part, MLP)} == {8192}
    assert sum(isinstance(part, ShortConv) for part in parts) == 3


@pytest.mark.parametrize(
    ("rope", "rotates"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, False),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}, "rope_theta": 500.0}, False),
        ({"rope_parameters": None, "rope_theta": None}, False),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 500.0}, True),
        ({}, True),
    ],
)
def test_olmo_hybrid_has_no_rope_where_theta_is_null(rope: dict[str, Any], rotates: bool) -> None:
    config = config_of(olmo_hybrid.CASES["rope, attention first, tied"])
    del config["rope_parameters"]
    layers = read_model({**config, **rope}).decoder.layers
    attention = [part for layer in layers for part in layer.parts() if isinstance(part, Attention)]
    assert [part.rope is not None for part in attention] == [rotates, rotates]


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (qwen3_next.CASES["every third layer"], {"hidden_act": "gelu"}, "hidden_act"),
        (qwen3_next.CASES["every third layer"], {"attn_output_gate": False}, "attn_output_gate is False"),
        (qwen3_next.CASES["every third layer"], {"layer_types": ["mamba"] * 3}, "layer_types.0. must be one of"),
        (lfm2.CASES["conv, conv, attention, conv"], {"layer_types": None, "full_attn_idxs": [4]}, "full_attn_idxs"),
        (lfm2.CASES["conv, conv, attention, conv"], {"conv_L_cache": 1}, "conv_L_cache must be between 2"),
        (olmo_hybrid.CASES["rope, attention first, tied"], {"hidden_act": "relu2"}, "hidden_act must be one of"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_model(config_of(config, **change))
