"""States of every kind of recurrent layer behind the runner: snapshots, rows with drafts, stale memory.

The decoders have random weights: what they compute is compared with what they compute without any of that.
"""

from typing import Any

import numpy as np
import pytest
import torch

from hybrid.models.context import StateCache
from hybrid.models.decoder import Decoder
from hybrid.models.families import read_model
from hybrid.models.weights import Weights
from tests.runner.plans import PlanDriver, poison, runner_sizes

CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {"model_type": "mamba", "vocab_size": 61, "hidden_size": 20, "num_hidden_layers": 2, "state_size": 5},
    "jamba": {
        "model_type": "jamba",
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "num_experts": 3,
        "mamba_d_state": 5,
        "mamba_d_conv": 3,
    },
    "recurrent_gemma": {
        "model_type": "recurrent_gemma",
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "attention_window_size": 9,
    },
}


def random_decoder(name: str, seed: int = 0) -> Decoder:
    """Large random weights; decays between almost all and almost nothing."""
    generator = torch.Generator().manual_seed(seed)
    model = read_model(CONFIGS[name])
    weights: dict[str, torch.Tensor] = {}
    for tensor, shape in model.tensors().items():
        noise = torch.randn(shape, generator=generator)
        if tensor.endswith(("A_log", "recurrent_param")):
            weights[tensor] = noise - 2
        elif len(shape) > 1:
            weights[tensor] = noise if "embed" in tensor else 1.2 * noise / (noise[0].numel() ** 0.5)
        else:
            weights[tensor] = (1.0 if "norm" in tensor and name != "recurrent_gemma" else 0.0) + 0.2 * noise
    return Decoder(model, Weights(weights, torch.float32, torch.device("cpu")))


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 61, length)]


def states_at(driver: PlanDriver, slot: int) -> list[torch.Tensor]:
    """Every recurrent tensor of the slot."""
    caches = [cache for cache in driver.runner.caches.layers if isinstance(cache, StateCache)]
    return [tensor[slot].clone() for cache in caches for tensor in (cache.conv, cache.ssm)]


def assert_states_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def from_scratch(model: Decoder, tokens: list[int]) -> list[torch.Tensor]:
    """The states after these tokens, computed one by one."""
    alone = PlanDriver(model, runner_sizes(), seed=4)
    alone.add("r", [*tokens, 5])
    for _ in tokens:
        alone.step({"r": 1})
    return states_at(alone, alone.requests["r"].state_slot)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("resumed", "chunk"), [(0, 100), (1, 2), (20, 9), (20, 64)])
def test_snapshots_inside_a_chunk_hold_the_state_at_exactly_their_position(name: str, resumed: int, chunk: int) -> None:
    model = random_decoder(name)
    prompt, other = prompt_of(130), prompt_of(70, seed=9)
    driver = PlanDriver(model, runner_sizes(), seed=3)
    for request_id, tokens in (("a", prompt), ("b", other), ("decoding", prompt_of(4, seed=8))):
        driver.add(request_id, tokens)
    driver.step({"decoding": 4})
    if resumed:
        driver.step({"a": resumed})
    positions = sorted({resumed + 1, resumed + (chunk + 1) // 2, resumed + chunk})
    slots = {position: driver.free_slot() for position in positions}
    slot_of_b, slot_of_decode = driver.free_slot(), driver.free_slot()
    wanted = [("a", position, slot) for position, slot in slots.items()]
    driver.step({"a": chunk, "decoding": 1, "b": 50}, [*wanted, ("b", 33, slot_of_b), ("decoding", 5, slot_of_decode)])
    for position, slot in slots.items():
        assert_states_equal(states_at(driver, slot), from_scratch(model, prompt[:position]))
    assert_states_equal(states_at(driver, slot_of_b), from_scratch(model, other[:33]))
    decoded = driver.requests["decoding"].token_ids[:5]
    assert_states_equal(states_at(driver, slot_of_decode), from_scratch(model, decoded))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_accepted", [0, 1, 2, 18])
def test_a_row_with_drafts_leaves_its_state_after_the_accepted_ones(name: str, num_accepted: int) -> None:
    """With company: other rows with drafts, a decode and a chunk in the same batch."""
    model = random_decoder(name)
    prompts = {"r": prompt_of(11), "s": prompt_of(7, 1), "decode": prompt_of(5, 2), "chunk": prompt_of(40, 3)}
    plain, drafted = PlanDriver(model, runner_sizes()), PlanDriver(model, runner_sizes(), seed=1)
    for driver in (plain, drafted):
        for request_id, prompt in prompts.items():
            driver.add(request_id, prompt)
    following = {request_id: tokens[:20] for request_id, tokens in plain.run(max_tokens=20, chunk=100).items()}
    drafted.step({request_id: len(prompts[request_id]) for request_id in ("r", "s", "decode")})
    right = following["r"][1 : 1 + num_accepted]
    wrong = [3 if following["r"][1 + num_accepted] != 3 else 4, 5]
    drafts = {"r": [*right, *wrong], "s": following["s"][1:3]}
    drafted.step({"r": 1, "s": 1, "decode": 1, "chunk": 30}, drafts=drafts)
    counts = {"r": 1 + num_accepted, "s": 3, "decode": 1}
    for request_id, count in counts.items():
        request = drafted.requests[request_id]
        assert request.token_ids[len(prompts[request_id]) :] == following[request_id][: count + 1]
        computed = [*prompts[request_id], *following[request_id][:count]]
        assert request.num_computed == len(computed)
        assert_states_equal(states_at(drafted, request.state_slot), from_scratch(model, computed))
    slot = drafted.requests["chunk"].state_slot
    assert_states_equal(states_at(drafted, slot), from_scratch(model, prompts["chunk"][:30]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_and_its_slot_show_nothing_of_a_former_owner(name: str) -> None:
    model = random_decoder(name)
    driver = PlanDriver(model, runner_sizes(num_rows=1, num_state_slots=1))
    for turn, chunk in enumerate((100, 1, 7)):
        prompt = prompt_of(30 - 10 * turn, seed=turn)
        clean = PlanDriver(model, runner_sizes(), stale=False)
        for each in (driver, clean):
            each.add("r", prompt)
        assert driver.run(max_tokens=4, chunk=chunk) == clean.run(max_tokens=4, chunk=100)
        driver.finish("r")
        poison(driver.runner)
