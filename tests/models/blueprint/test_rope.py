"""Frequencies of every kind of rope are those of transformers; what is not known is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hybrid.models.blueprint.config_reader import ConfigReader
from hybrid.models.blueprint.parts import Attention
from hybrid.models.blueprint.rope import mrope_axes, read_rope
from hybrid.models.families import read_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3,
        YARN,
        {**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
        {**YARN, "attention_factor": 0.7},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
        {"rope_type": "linear", "factor": 3.0},
    ],
)
@pytest.mark.parametrize("old", [False, True])
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any], old: bool) -> None:
    new: dict[str, Any] = {"rope_parameters": {**scaling, "rope_theta": 5000.0}}
    config = LlamaConfig(hidden_size=96, num_attention_heads=2, head_dim=48, max_position_embeddings=256, **new)
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    spelled = {"rope_theta": 5000.0, "rope_scaling": scaling} if old else new
    rope = read_rope(ConfigReader({"max_position_embeddings": 256, **spelled}), 48)
    torch.testing.assert_close(torch.tensor(rope.inverse_frequencies), expected.float(), rtol=2e-6, atol=0)
    assert rope.attention_factor == pytest.approx(factor)


def test_part_of_the_head_may_be_rotated() -> None:
    rope = read_rope(ConfigReader({"rope_theta": 100.0, "partial_rotary_factor": 0.25}), 16)
    assert rope.rotary_dim == 4
    assert rope.inverse_frequencies == pytest.approx((1.0, 0.1))
    with pytest.raises(ValueError, match="partial_rotary_factor"):
        read_rope(ConfigReader({"rope_theta": 100.0, "partial_rotary_factor": 1.5}), 16)


def test_kinds_of_layers_may_have_their_own() -> None:
    config = ConfigReader(
        {"rope_parameters": {"full": {"rope_theta": 100.0}, "sliding": {"rope_type": "default", "rope_theta": 16.0}}}
    )
    assert read_rope(config, 4, layer_type="full").inverse_frequencies[1] == pytest.approx(0.1)
    assert read_rope(config, 4, layer_type="sliding").inverse_frequencies[1] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope_type must be one of .* 'dynamic'",
        ),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_theta": 1e4, "rope_scaling": "yarn"}, "rope_scaling must be an object, got 'yarn'"),
        ({"rope_theta": -1.0}, "rope_theta must be above 0"),
        ({}, "rope_theta is missing"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_rope(ConfigReader(data), 8)


def mrope(pairs: int, in_turns: bool, **keys: Any) -> str:
    config = ConfigReader({"rope_parameters": {"rope_theta": 1e4, **keys}})
    return "".join("thw"[axis] for axis in mrope_axes(config, pairs, (3, 2, 1), in_turns=in_turns))


def test_pairs_belong_to_time_height_or_width() -> None:
    assert mrope(6, False) == "ttthhw"
    assert mrope(5, False, mrope_section=[1, 0, 4]) == "twwww"
    assert mrope(6, True) == "thwtht"
    assert mrope(8, True, mrope_section=[4, 2, 2], mrope_interleaved=True) == "thwthwtt"
    assert mrope(4, True, mrope_section=[24, 20, 20]) == "thwt"


def test_sections_of_published_models() -> None:
    for file, in_turns in (("Qwen2.5-VL-7B-Instruct", False), ("Qwen3.5-27B", True)):
        path = Path(__file__).parents[1] / "families" / "model_configs" / f"{file}.json"
        ropes = {
            part.rope
            for part in read_model(json.loads(path.read_text(encoding="utf-8"))).decoder.plain_parts()
            if isinstance(part, Attention)
        }
        (rope,) = ropes
        assert rope is not None and rope.axes is not None
        assert [rope.axes.count(axis) for axis in range(3)] == ([11, 11, 10] if in_turns else [16, 24, 24])
        assert (rope.axes[1] == 1) == in_turns


@pytest.mark.parametrize(
    ("in_turns", "keys", "words"),
    [
        (False, {"mrope_section": [3, 2, 2]}, r"mrope_section must be three numbers of pairs, 6 together"),
        (False, {"mrope_section": [3, 3]}, "mrope_section must be a list of 3 entries"),
        (True, {"mrope_section": [3, -1, 4]}, r"mrope_section must be three numbers of pairs, got \[3, -1, 4\]"),
        (True, {"mrope_section": [3, True, 2]}, "mrope_section must be three numbers"),
        (True, {"mrope_section": [3, 2, 1], "mrope_interleaved": False}, "mrope_interleaved is False"),
        (False, {"mrope_section": [3, 2, 1], "mrope_interleaved": True}, "mrope_interleaved is True"),
    ],
)
def test_sections_that_cannot_be(in_turns: bool, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mrope(6, in_turns, **keys)
