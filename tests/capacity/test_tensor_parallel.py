"""What one of several devices holds: together at least the model, never more than norms, routers and what sees images
twice."""

from math import prod

import pytest

from hybrid.capacity.model_file import num_parameters, open_model
from hybrid.capacity.tensor_parallel import share_of

from .questions import BY_NAME, planned

# Mamba-1, Mamba-2 with groups, delta net with experts, windows, a shared expert
DIVISIBLE = ("Jamba-v0.1", "Nemotron-H-8B-Base-8K", "Qwen3-Next-80B-A3B-Instruct", "gemma-3-12b-it", "gpt-oss-20b")


@pytest.mark.parametrize("name", DIVISIBLE)
def test_shares_add_up(name: str) -> None:
    model = open_model(BY_NAME[name])
    whole, share = num_parameters(model), num_parameters(share_of(model, 2))
    vision = sum(map(prod, model.vision.tensors.values())) if model.vision is not None else 0
    assert whole <= 2 * share < 1.01 * whole + vision
    assert share_of(model, 1) is model


@pytest.mark.parametrize("name", DIVISIBLE)
def test_what_is_kept_is_halved(name: str) -> None:
    one, two = planned(name).spec, planned(name, tp=2).spec
    assert 2 * two.full_bytes_per_token == one.full_bytes_per_token
    assert 2 * two.window_bytes_per_token == one.window_bytes_per_token
    assert 2 * two.state_bytes_per_slot == one.state_bytes_per_slot


@pytest.mark.parametrize(
    ("name", "tp", "why"),
    [
        ("granite-4.0-h-tiny", 2, r"tp 2 does not divide n_groups 1 of model\.layers\.0\.mamba"),
        ("Llama-3.1-8B", 16, r"tp 16 does not divide num_kv_heads 8 of model\.layers\.0\.self_attn"),
        ("LFM2-1.2B", 2, "tp 2: ShortConv layers cannot be divided over devices"),
    ],
)
def test_what_does_not_divide_is_refused(name: str, tp: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        planned(name, tp=tp)


def test_the_engine_cannot_be_told() -> None:
    made = planned("Jamba-v0.1", tp=4)
    assert made.flags() == ""
    assert made.question.what_if == ("the engine runs a model on one device, not on 4",)
