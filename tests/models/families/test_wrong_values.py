"""Whatever stands in a `config.json` is read or refused in one sentence: nothing else, and at once."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hybrid.models.families import FAMILIES, read_model

from .oracle import all_cases

Config = dict[str, Any]
Path = tuple[str | int, ...]
WRONG: list[Any] = [-1, 0, 10**9, 10**400, 1e308, 1e-308, float("nan"), "x", True, None, [], [1], [[]], {}, {"a": [1]}]
# Keys that files may have beside those of the cases.
MORE: Config = {
    "quantization_config": None,
    "rope_scaling": None,
    "rope_theta": 1e4,
    "partial_rotary_factor": 1,
    "layer_types": None,
    "mlp_only_layers": None,
    "attn_layer_indices": None,
    "full_attn_idxs": None,
    "time_step_limit": None,
    "mamba_dt_limit": None,
    "sliding_window": None,
    "query_pre_attn_scalar": None,
    "torch_dtype": None,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}


def configs() -> dict[str, Config]:
    """One of every family, as its `config.json` says it."""
    found: dict[str, Config] = {}
    for name, config in all_cases().items():
        family = name.split(":")[0]
        if family in FAMILIES and family not in found and "ssm_cfg" not in config.to_dict():
            found[family] = {**MORE, **json.loads(config.to_json_string(use_diff=False))}
    found["llama"]["rope_parameters"] = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}
    return found


CONFIGS = configs()


def places(config: Any, at: Path = ()) -> Iterator[Path]:
    """Of every value, at any depth."""
    entries: Any = config.items() if isinstance(config, dict) else enumerate(config[:2])
    for key, value in entries:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


def changed(config: Config, place: Path, value: Any) -> Config:
    """A copy with another value at the place."""
    copy: Any = json.loads(json.dumps(config))
    holder = copy
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return dict(copy)


@pytest.mark.parametrize("family", CONFIGS)
def test_any_value_is_read_or_refused_in_a_sentence(family: str) -> None:
    for place in places(CONFIGS[family]):
        for value in WRONG:
            try:
                read_model(changed(CONFIGS[family], place, value)).tensors()
            except ValueError as error:
                message = str(error)
                assert "\n" not in message
                assert "layers." in message or str(place[-1]) in message or "config." in message, (place, value)
                assert len(message) < 1000


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("llama", {"num_hidden_layers": 10**9}, r"num_hidden_layers must be between 1 and 4096, got 1000000000"),
        ("recurrent_gemma", {"num_hidden_layers": 10**9}, r"num_hidden_layers must be between 1 and 4096"),
        ("qwen3_moe", {"num_experts": 10**9}, r"num_experts must be between 1 and 4096, got 1000000000"),
        ("llama", {"head_dim": 10**9}, r"head_dim must be at most 65536, got 1000000000"),
        ("llama", {"rms_norm_eps": 10**400}, r"rms_norm_eps must be a number that float32 holds, got 1000"),
        ("granite", {"embedding_multiplier": 1e308}, r"embedding_multiplier must be .*float32 holds, got 1e\+308"),
        ("granite", {"logits_scaling": 1e-308}, "logits_scaling must be at least 2.9e-39, got 1e-308"),
        ("falcon_h1", {"mlp_multipliers": [1, 1e308]}, r"mlp_multipliers\[1\] must be .*float32 holds, got 1e\+308"),
        ("qwen3_moe", {"mlp_only_layers": ["x"]}, r"mlp_only_layers must be a list of integers .*, got \['x'\]"),
        ("qwen3_next", {"mlp_only_layers": [99]}, r"mlp_only_layers must be a list of integers .*, got \[99\]"),
        ("llama", {"rope_parameters": {**YARN, "rope_theta": 1}}, "must be numbers that give finite frequencies"),
        ("llama", {"rope_parameters": {"rope_theta": 1e-308}}, "rope_theta must be at least"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 1e30}}, "partial_rotary_factor must be at most 1"),
        ("zamba2", {"mamba_expand": 1e30}, r"mamba_expand must be such that"),
        ("lfm2", {"block_ffn_dim_multiplier": 1e30, "block_auto_adjust_ff_dim": True}, r"block_ffn_dim_multiplier"),
        ("falcon_h1", {"time_step_limit": [0, 10**400]}, "time_step_limit must be two numbers"),
        ("mamba2", {"time_step_limit": [-1, 2]}, "time_step_limit must be two numbers"),
        (
            "llava",
            {"text_config": {"model_type": ["llama"]}},
            r"text_config\.model_type must be a string, got \['llama'",
        ),
    ],
)
def test_values_that_would_take_all_memory_or_end_in_another_error(family: str, change: Config, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_model({**CONFIGS[family], **change})


@pytest.mark.parametrize("limit", ["x", [1], [2, 1], [0, float("nan")], [0, "1"], [[], 1]])
def test_limits_of_step_sizes_of_mamba_ssm(limit: Any) -> None:
    config = {"d_model": 64, "n_layer": 1, "vocab_size": 50, "ssm_cfg": {"layer": "Mamba2", "dt_limit": limit}}
    with pytest.raises(ValueError, match="dt_limit must be"):
        read_model(config)
