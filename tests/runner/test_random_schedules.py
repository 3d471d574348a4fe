"""Random schedules: rows come and go, chunks of any length, resumption from snapshots; greedy output stays right."""

import numpy as np
import pytest

from tests.runner.plans import PlanDriver, assert_greedy, native_model, random_reference, runner_sizes, small_config


@pytest.mark.parametrize("seed", range(12))
def test_any_schedule_generates_what_the_reference_generates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixers = "".join(rng.choice(list("fsmFSM"), rng.integers(1, 5)))
    window = int(rng.integers(1, 30))
    reference = random_reference(small_config(mixers, sliding_window=window), seed)
    block_size = int(rng.choice([1, 2, 3, 5, 16]))
    sizes = runner_sizes(
        block_size=block_size, num_full_blocks=4000, num_window_blocks=4000, num_rows=5, num_state_slots=7
    )
    driver = PlanDriver(native_model(reference), sizes, seed=seed)
    wanted: dict[str, int] = {}
    finished = added = 0
    while finished < 12:
        while len(driver.requests) < 5 and added < 12 and rng.random() < 0.5:
            request_id = f"r{added}"
            length = int(rng.choice([1, 2, 15, 40, 100]))
            driver.add(request_id, [int(token) for token in rng.integers(3, 61, length)])
            wanted[request_id] = int(rng.integers(1, 12))
            added += 1
        counts = {}
        for request_id, request in driver.requests.items():
            if rng.random() < 0.8:
                left = len(request.token_ids) - request.num_computed
                counts[request_id] = int(min(left, rng.choice([1, 2, 3, 17, 64, 200])))
        if counts:
            driver.step(dict(sorted(counts.items(), key=lambda item: rng.random())))
        for request_id, request in list(driver.requests.items()):
            generated = request.token_ids[request.num_prompt_tokens :]
            if len(generated) >= wanted[request_id]:
                assert_greedy(reference, request.token_ids[: request.num_prompt_tokens], generated)
                driver.finish(request_id)
                finished += 1


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_a_request_goes_on_from_any_snapshot(seed: int, block_size: int) -> None:
    """The state is copied from a snapshot; blocks are shared with the row that took it."""
    rng = np.random.default_rng(seed)
    reference = random_reference(small_config("mFMs"), seed)
    driver = PlanDriver(native_model(reference), runner_sizes(block_size=block_size, num_full_blocks=900), seed=seed)
    prompt = [int(token) for token in rng.integers(3, 61, 60)]
    driver.add("first", prompt)
    snapshots: dict[int, int] = {}
    while (done := driver.requests["first"].num_computed) < 60:
        count = int(min(60 - done, rng.choice([1, 5, 30])))
        position = done + int(rng.integers(1, count + 1))
        snapshots[position] = driver.free_slot()
        driver.step({"first": count}, [("first", position, snapshots[position])])
    for position in [p for p in snapshots if p < 60][:4]:
        tail = [int(token) for token in rng.integers(3, 61, 9)]
        driver.add(f"from {position}", [*prompt[:position], *tail])
        driver.resume(f"from {position}", "first", position, snapshots[position])
    for request_id, tokens in driver.run(max_tokens=5, chunk=7).items():
        request = driver.requests[request_id]
        assert_greedy(reference, request.token_ids[: request.num_prompt_tokens], tokens)
