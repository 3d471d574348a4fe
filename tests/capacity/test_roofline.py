"""Roofline: operations and bytes counted by hand, and what follows for the time of a step."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from hybrid.capacity.hardware import HARDWARE, find_hardware
from hybrid.capacity.layer_costs import LayerCosts
from hybrid.capacity.model_file import weight_bytes
from hybrid.capacity.question import Question
from hybrid.capacity.roofline import Assumptions, Load, Roofline
from hybrid.capacity.step_work import Adapted, StepWork
from hybrid.models.blueprint.model import Model
from hybrid.models.families import read_model

from .questions import BY_NAME, question

LLAMA = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
# Queries and output 2 * 16 * 32, keys and values 2 * 16 * 16, gate, up and down 3 * 16 * 24, two norms of 16.
DENSE = 3 * (2 * 16 * 32 + 2 * 16 * 16 + 3 * 16 * 24 + 2 * 16)
KV = 3 * 2 * 2 * 8 * 2  # layers, keys and values, heads, size, bytes


def ask(model: Model, **more: Any) -> Question:
    given = {"hardware": HARDWARE["h100"], "context": 64, "output": 8}
    return Question(name="model", model=model, **{**given, **more})


def roofline(config: dict[str, Any] = LLAMA, **more: Any) -> Roofline:
    return Roofline.of(ask(read_model(config), **more))


def by_kind(loads: list[Load]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for load in loads:
        operations, size = found.get(load.kind, (0.0, 0.0))
        found[load.kind] = (operations + load.operations, size + load.bytes)
    return found


def decodes(*contexts: int) -> StepWork:
    return StepWork(np.ones(len(contexts), np.int64), np.array(contexts), len(contexts))


def chunk(length: int, computed: int = 0, sampled: int = 0) -> StepWork:
    return StepWork(np.array([length]), np.array([computed]), sampled)


def test_a_decode_step_of_a_small_model_by_hand() -> None:
    found = by_kind(roofline().loads(decodes(9, 19)))
    inputs_and_outputs = 3 * (2 * (16 + 32) + 2 * (16 + 16) + 3 * (16 + 24))
    assert found == {
        "dense": (2 * DENSE * 2, 2 * DENSE + 2 * inputs_and_outputs * 2),
        "decodes": (3 * 4 * 32 * (10 + 20), KV * (10 + 20) + 2 * KV),
        "logits": (2 * 1616 * 2, 2 * 1616 + 8 * 100 * 2),  # the last norm with them
    }


def test_a_chunk_sees_a_triangle_and_reads_its_keys_once() -> None:
    found = by_kind(roofline().loads(chunk(10, 100)))
    pairs = sum(range(101, 111))
    assert set(found) == {"dense", "chunks"}
    assert found["chunks"] == (3 * 4 * 32 * pairs, KV * 110 + KV * 10)


def test_a_window_bounds_what_is_read() -> None:
    config = LLAMA | {"model_type": "mistral", "sliding_window": 8}
    assert by_kind(roofline(config).loads(decodes(3, 1000)))["decodes"][0] == 3 * 4 * 32 * (4 + 8)


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "gemma-3-12b-it", "granite-4.0-h-micro", "mamba2-2.7b", "LFM2-1.2B"])
def test_one_decode_reads_all_weights_once_but_an_untied_table(name: str) -> None:
    asked = question(name, hardware=HARDWARE["h100"])
    decoder = asked.model.decoder
    made = Roofline.of(asked)
    step = sum(load.bytes for load in made.loads(decodes(0)))
    kept = asked.spec()
    cache = 2 * (kept.full_bytes_per_token + kept.window_bytes_per_token + kept.state_bytes_per_slot)
    activations = made.costs.activations * made.computed_bytes + 8 * decoder.vocab_size
    table = decoder.vocab_size * decoder.hidden_size * made.weight_bytes if decoder.head is not None else 0
    weights = made.weight_bytes * sum(map(prod, decoder.tensors().values()))
    assert step - cache - activations == weights - table


def test_experts_are_read_as_far_as_tokens_choose_them() -> None:
    asked = question("gpt-oss-20b", hardware=HARDWARE["h100"])
    made = Roofline.of(asked)
    [experts] = made.costs.experts
    one = 3 * 2880 * 2880 * 24  # gate, up and down of 2880 x 2880 in 24 layers
    assert (experts.num_experts, experts.top_k, experts.elements) == (32, 4, one)
    read = [by_kind(made.loads(chunk(n)))["experts"][1] / (one * made.weight_bytes) for n in (1, 2, 4096)]
    assert read == pytest.approx([4, 4 + 4 * (1 - 4 / 32), 32])
    assert by_kind(made.loads(chunk(5)))["experts"][0] == 2 * 4 * one * 5


def test_recurrent_states_are_read_and_written_once_per_row() -> None:
    asked = question("mamba2-2.7b", hardware=HARDWARE["h100"])
    made, state = Roofline.of(asked), asked.spec().state_bytes_per_slot
    assert by_kind(made.loads(decodes(5, 500)))["scans"] == (2 * 5 * 64 * 80 * 64 * 128, 4 * state)
    with_snapshots = replace(chunk(100), snapshots=3)
    assert by_kind(made.loads(with_snapshots))["scans"][1] == 5 * state


def test_a_shared_block_is_read_in_every_layer_that_uses_it() -> None:
    asked = question("Zamba2-2.7B", hardware=HARDWARE["h100"])
    assert Roofline.of(asked).costs.dense * 2 > weight_bytes(asked.model, "bfloat16") * 1.3


def test_images() -> None:
    """tiny's tower: a table of as many positions as there are patches."""
    asked = question("tiny", context=100, output=8, memory_bytes=2**28, hardware=HARDWARE["h100"])
    vision = asked.model.vision
    assert vision is not None
    [(positions, size)] = [shape[-2:] for name, shape in vision.tensors.items() if name.endswith("pos_embed")]
    elements = sum(map(prod, vision.tensors.values())) - positions * size
    made = Roofline.of(asked)
    tokens = vision.tokens.most
    work = replace(chunk(4), image_tokens=(tokens, tokens))
    assert by_kind(made.loads(work))["images"] == (2 * 2 * elements * positions, elements * made.weight_bytes)


def test_adapters_cost_their_rank_and_their_load() -> None:
    made = roofline()
    unit = 8 * 3 * (2 * (16 + 32) + 2 * (16 + 16) + 3 * (16 + 24)) + 8 * (2 * (16 + 100))
    work = replace(decodes(1, 1, 1), adapted=(Adapted(3, 2),))
    assert by_kind(made.loads(work))["adapters"] == (2 * unit * 3 * 2, unit * 2 * 2)
    assert made.costs.lora * 2 == read_model(LLAMA).lora_bytes_per_unit("bfloat16")
    loading = made.seconds(replace(work, loaded_units=4)) - made.seconds(work)
    assert loading == pytest.approx(4 * unit * 2 / made.assumptions.host_bandwidth)


def test_the_time_is_the_longer_of_both_for_each_kind() -> None:
    made = roofline()
    launches = made.assumptions.step_seconds + 6 * made.assumptions.part_seconds
    rate, bandwidth = 0.7 * 989.4e12, 0.8 * 3.35e12
    for work in (decodes(5), chunk(400, sampled=1)):
        expected = sum(max(load.operations / rate, load.bytes / bandwidth) for load in made.loads(work))
        assert made.seconds(work) == pytest.approx(launches + expected)


def test_several_devices_share_the_work_and_exchange_sums() -> None:
    asked = question("Llama-3.1-8B", hardware=HARDWARE["h100"])
    one, four = Roofline.of(asked), Roofline.of(replace(asked, tp=4))
    work = chunk(2048)
    operations = [sum(load.operations for load in made.loads(work)) for made in (one, four)]
    assert operations[1] == pytest.approx(operations[0] / 4, rel=1e-3)  # norms are held by all
    assumed, parts = Assumptions(), 64
    alone = replace(four, tp=1).seconds(work)
    exchanged = 2 * 3 / 4 * 2048 * 4096 * 2 / assumed.link_bandwidth
    assert four.seconds(work) - alone == pytest.approx(parts * (assumed.link_seconds + exchanged))


def test_every_public_configuration_has_costs() -> None:
    for name in BY_NAME:
        asked = question(name, hardware=HARDWARE["h100"], weights_dtype="bfloat16")
        costs = LayerCosts.of(asked.model, asked.spec())
        decode = Roofline.of(asked).seconds(decodes(100))
        assert costs.num_parts >= len(asked.model.decoder.layers), name
        assert 1e-3 < decode < Roofline.of(asked).seconds(chunk(4096)), name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"hardware": find_hardware("cpu")}, "no rate of cpu in bfloat16 is known; give --flops and --bandwidth, or"),
        ({"hardware": find_hardware("cpu", flops=1e12)}, "the bandwidth of cpu is not known; give"),
        ({"hardware": replace(HARDWARE["a10"], flops={})}, "no rate of a10 in bfloat16 is known; give"),
        ({"hardware": None, "memory_bytes": 2**30}, "step times need a gpu"),
    ],
)
def test_unknown_rates_are_a_sentence(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        roofline(**more)


@pytest.mark.parametrize(
    "wrong", [{"compute_share": 0.0}, {"bandwidth_share": 1.5}, {"link_bandwidth": 0.0}, {"step_seconds": -1.0}]
)
def test_assumptions_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Assumptions(**wrong)
