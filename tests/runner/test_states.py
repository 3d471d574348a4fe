"""What a row leaves behind and what it may see: snapshots, resumption, stale memory, chunk boundaries."""

import numpy as np
import pytest
import torch

from hybrid.models.context import AttentionCache, StateCache
from hybrid.pools.specs import FullAttentionSpec
from hybrid.runner.caches import Caches
from hybrid.runner.model_runner import ModelRunner
from tests.runner.plans import (
    PlanDriver,
    assert_greedy,
    native_model,
    poison,
    random_reference,
    runner_sizes,
    small_config,
)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 61, length)]


def states_at(caches: Caches, slot: int) -> list[torch.Tensor]:
    """Every recurrent tensor of the slot."""
    return [t[slot].clone() for c in caches.layers if isinstance(c, StateCache) for t in (c.conv, c.ssm)]


def assert_states_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 17, 64, 65, 130])
@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 63, 64, 130])
def test_the_state_after_chunks_of_any_length_is_the_state_from_scratch(length: int, chunk: int) -> None:
    model = native_model(random_reference(small_config("Mm")))
    prompt = prompt_of(length)
    whole, parts = PlanDriver(model, runner_sizes()), PlanDriver(model, runner_sizes(), seed=1)
    for driver, step in ((whole, length), (parts, chunk)):
        driver.add("r", prompt)
        while (left := length - driver.requests["r"].num_computed) > 0:
            driver.step({"r": min(step, left)})
    expected = states_at(whole.runner.caches, whole.requests["r"].state_slot)
    assert_states_equal(states_at(parts.runner.caches, parts.requests["r"].state_slot), expected)


@pytest.mark.parametrize("resumed", [0, 1, 20])
@pytest.mark.parametrize("chunk", [2, 9, 64, 100])
def test_snapshots_inside_a_chunk_hold_the_state_at_exactly_their_position(resumed: int, chunk: int) -> None:
    model = native_model(random_reference(small_config("mFsM")))
    prompt = prompt_of(130)
    driver = PlanDriver(model, runner_sizes(), seed=3)
    driver.add("a", prompt)
    driver.add("b", prompt_of(70, seed=9))
    driver.add("decoding", prompt_of(4, seed=8))
    driver.step({"decoding": 4})
    if resumed:
        driver.step({"a": resumed})
    positions = sorted({resumed + 1, resumed + 2, resumed + (chunk + 1) // 2, resumed + chunk})
    slots = {position: driver.free_slot() for position in positions}
    slot_of_b, slot_of_decode = driver.free_slot(), driver.free_slot()
    wanted = [("a", position, slot) for position, slot in slots.items()]
    driver.step({"a": chunk, "decoding": 1, "b": 50}, [*wanted, ("b", 33, slot_of_b), ("decoding", 5, slot_of_decode)])

    def from_scratch(tokens: list[int]) -> list[torch.Tensor]:
        alone = PlanDriver(model, runner_sizes(), seed=4)
        alone.add("r", [*tokens, 5])
        alone.step({"r": len(tokens)})
        return states_at(alone.runner.caches, alone.requests["r"].state_slot)

    for position, slot in slots.items():
        assert_states_equal(states_at(driver.runner.caches, slot), from_scratch(prompt[:position]))
    assert_states_equal(states_at(driver.runner.caches, slot_of_b), from_scratch(prompt_of(70, seed=9)[:33]))
    decoded = driver.requests["decoding"].token_ids[:5]
    assert_states_equal(states_at(driver.runner.caches, slot_of_decode), from_scratch(decoded))


@pytest.mark.parametrize("mixers", ["mF", "sM", "fsm"])
def test_a_row_and_its_slot_show_nothing_of_a_former_owner(mixers: str) -> None:
    reference = random_reference(small_config(mixers))
    driver = PlanDriver(native_model(reference), runner_sizes(num_rows=1, num_state_slots=1))
    for turn in range(3):
        prompt = prompt_of(30 - 10 * turn, seed=turn)
        driver.add("r", prompt)
        assert_greedy(reference, prompt, driver.run(max_tokens=4, chunk=[100, 1, 7][turn])["r"])
        driver.finish("r")
        poison(driver.runner)


def test_a_resumed_row_reads_copied_blocks_and_a_copied_state() -> None:
    reference = random_reference(small_config("mFsM"))
    driver = PlanDriver(native_model(reference), runner_sizes(block_size=4))
    prompt = prompt_of(30)
    driver.add("first", prompt)
    snapshot = driver.free_slot()
    driver.step({"first": 30}, [("first", 22, snapshot)])
    # a second request shares 22 tokens: 5 whole blocks, and 2 tokens of a block that is copied
    other = [*prompt[:22], *prompt_of(9, seed=5)]
    driver.add("second", other)
    driver.resume("second", "first", 22, snapshot)
    tokens = driver.run(max_tokens=6, chunk=100)
    assert_greedy(reference, prompt, tokens["first"])
    assert_greedy(reference, other, tokens["second"])


def test_a_later_plan_runs_before_the_earlier_one_is_committed() -> None:
    reference = random_reference(small_config("mFs"))
    driver = PlanDriver(native_model(reference), runner_sizes())
    prompts = {f"r{i}": prompt_of(10 + i, seed=i) for i in range(4)}
    for request_id, prompt in prompts.items():
        driver.add(request_id, prompt)
    in_flight = []
    for step in range(6):
        plan = driver.plan({i: len(p) if step == 0 else 1 for i, p in prompts.items()})
        for request in driver.requests.values():  # the scheduler counts a placeholder, its value comes later
            request.token_ids.append(-1)
        in_flight.append((plan, driver.runner.execute(plan)))
    for j, prompt in enumerate(prompts.values()):
        tokens = [int(output.result.sampled_token_ids[j, 0]) for _, output in in_flight]
        assert_greedy(reference, prompt, tokens)


def test_pool_tensors_are_allocated_once() -> None:
    driver = PlanDriver(native_model(random_reference(small_config("mFs"))), runner_sizes())

    def addresses(runner: ModelRunner) -> list[tuple[int, int]]:
        return [(t.data_ptr(), t.untyped_storage().nbytes()) for t in runner.caches.tensors()]

    before = addresses(driver.runner)
    for i in range(5):
        driver.add(f"r{i}", prompt_of(20 + 20 * i, seed=i))
    driver.run(max_tokens=5, chunk=16)
    assert addresses(driver.runner) == before


def test_the_null_blocks_stay_zero() -> None:
    driver = PlanDriver(native_model(random_reference(small_config("fs"))), runner_sizes(block_size=3))
    for i in range(5):
        driver.add(f"r{i}", prompt_of(1 + 30 * i, seed=i))
    driver.run(max_tokens=5, chunk=16)
    for cache in driver.runner.caches.layers:
        assert isinstance(cache, AttentionCache)
        assert not cache.kv[cache.null_block].any()


def test_entries_behind_the_window_are_not_read() -> None:
    reference = random_reference(small_config("sS", sliding_window=5))
    driver = PlanDriver(native_model(reference), runner_sizes(block_size=4))
    prompt = prompt_of(40)
    driver.add("r", prompt)
    while driver.requests["r"].num_computed < 36:
        driver.step({"r": 6})
        request, mirror = driver.requests["r"], driver.runner.mirror
        behind = max(0, request.num_computed - 5 + 1) // 4
        stale = mirror.window_table[request.row, :behind]
        stale = stale[stale < 10**9]
        for cache in driver.runner.caches.layers:  # the blocks belong to somebody else now
            assert isinstance(cache, AttentionCache)
            cache.kv[stale] = float("nan")
        mirror.window_table[request.row, :behind] = 10**9
    assert_greedy(reference, prompt, driver.run(max_tokens=9, chunk=4)["r"])


@pytest.mark.parametrize("mixers", ["mm", "ff", "ss", "MFsm"])
@pytest.mark.parametrize("count", [1, 9, 20])
def test_what_a_row_computes_does_not_depend_on_its_company(mixers: str, count: int) -> None:
    model = native_model(random_reference(small_config(mixers)))
    alone, together = PlanDriver(model, runner_sizes()), PlanDriver(model, runner_sizes(), seed=7)
    for i in range(7):
        together.add(f"other{i}", prompt_of(2 + 9 * i, seed=i))
    left = []
    for driver in (alone, together):
        driver.add("r", prompt_of(20))
        driver.step({"r": count} | {request_id: 1 for request_id in driver.requests if request_id != "r"})
        left.append(left_behind(driver, "r"))
    for a, b in zip(*left):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def left_behind(driver: PlanDriver, request_id: str) -> list[torch.Tensor]:
    """The request's state, or keys and values in token order, in every layer."""
    request, mirror = driver.requests[request_id], driver.runner.mirror
    left = []
    for (spec,), cache in zip(driver.model.spec.layers, driver.runner.caches.layers):
        if isinstance(cache, StateCache):
            left += [cache.conv[request.state_slot], cache.ssm[request.state_slot]]
        else:
            table = mirror.full_table if isinstance(spec, FullAttentionSpec) else mirror.window_table
            blocks = cache.kv[table[request.row, : request.num_blocks]]
            left.append(blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : request.num_computed])
    return left
