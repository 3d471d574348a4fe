"""The runner's greedy tokens equal the reference's, for layer mixtures, chunk sizes, block sizes and mixed batches."""

import numpy as np
import pytest

from tests.runner.plans import PlanDriver, assert_greedy, native_model, random_reference, runner_sizes, small_config

MIXTURES = ["F", "s", "m", "mMfS", "SfmSM", "FFm", "sMsM"]


def prompts(count: int, seed: int, longest: int = 75) -> dict[str, list[int]]:
    rng = np.random.default_rng(seed)
    return {f"r{i}": rng.integers(3, 61, rng.integers(1, longest)).tolist() for i in range(count)}


@pytest.mark.parametrize("mixers", MIXTURES)
@pytest.mark.parametrize(("chunk", "block_size"), [(1, 3), (7, 1), (64, 16), (1000, 4)])
def test_a_mixed_batch_generates_what_the_reference_generates(mixers: str, chunk: int, block_size: int) -> None:
    reference = random_reference(small_config(mixers), seed=len(mixers))
    driver = PlanDriver(native_model(reference), runner_sizes(block_size=block_size, num_full_blocks=500))
    for request_id, prompt in prompts(5, seed=chunk).items():
        driver.add(request_id, prompt)
    for request_id, tokens in driver.run(max_tokens=8, chunk=chunk).items():
        prompt = driver.requests[request_id].token_ids[:-8]
        assert len(tokens) == 8
        assert_greedy(reference, prompt, tokens)
