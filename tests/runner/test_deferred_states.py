"""Rows with drafts, for every recurrent operation: their states wait for the verdict, then advance by what counted."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hybrid.models.context import StateCache
from hybrid.models.decoder import Decoder
from hybrid.runner.loading import load
from tests.models.families.oracle import Oracle, all_cases
from tests.runner.plans import GREEDY, PlanDriver, runner_sizes

# One case per operation beside Mamba-2's, whose drafts `test_model_runner` covers.
CASES = (
    "qwen3_next: attention first, dense layers, biases",
    "olmo_hybrid: no rope, sizes by default",
    "lfm2: attention by index, kernel 4, biases, untied",
)
PROMPTS = {name: np.random.default_rng(i).integers(3, 90, 7 + 6 * i).tolist() for i, name in enumerate("abcd")}


@pytest.fixture(scope="module", params=CASES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    oracle = Oracle(all_cases()[request.param], tmp_path_factory.mktemp("checkpoint"))
    return load(oracle.folder, torch.float32).decoder


@pytest.fixture(scope="module")
def plain(decoder: Decoder) -> Callable[[int], PlanDriver]:
    """A driver whose requests computed their prompt and so many tokens, one at a time."""

    def run(num_tokens: int) -> PlanDriver:
        driver = PlanDriver(decoder, runner_sizes())
        for name, prompt in PROMPTS.items():
            driver.add(name, prompt, GREEDY)
        driver.run(max_tokens=num_tokens, chunk=100)
        return driver

    return run


def states(driver: PlanDriver, name: str) -> list[torch.Tensor]:
    slot = driver.requests[name].state_slot
    caches = [cache for cache in driver.runner.caches.layers if isinstance(cache, StateCache)]
    return [tensor[slot] for cache in caches for tensor in (cache.conv, cache.ssm) if tensor.numel()]


def test_states_are_those_after_the_accepted_drafts(decoder: Decoder, plain: Callable[[int], PlanDriver]) -> None:
    """In one step rows accept none, one, two and all five of their drafts; one decodes without any."""
    right = {name: request.token_ids[len(PROMPTS[name]) :] for name, request in plain(8).requests.items()}
    accepted = {"a": 0, "b": 1, "c": 2, "d": 5}
    drafted = PlanDriver(decoder, runner_sizes(), seed=1)
    for name, prompt in {**PROMPTS, "e": PROMPTS["a"]}.items():
        drafted.add(name, prompt, GREEDY)
    drafted.step({name: len(request.token_ids) for name, request in drafted.requests.items()})
    drafts = {}
    for name, count in accepted.items():
        wrong = [3 if right[name][count + 1] != 3 else 4, 5]
        drafts[name] = right[name][1 : count + 1] + (wrong if count < 5 else [])
    drafted.step(dict.fromkeys(drafted.requests, 1), drafts=drafts)
    for name, count in {**accepted, "e": 0}.items():
        of_plain = plain(count + 2)  # the last token is sampled and not computed
        other = "a" if name == "e" else name
        assert drafted.requests[name].token_ids == of_plain.requests[other].token_ids
        for one, expected in zip(states(drafted, name), states(of_plain, other), strict=True):
            torch.testing.assert_close(one, expected, rtol=2e-4, atol=2e-5)


def test_verified_drafts_do_not_change_the_output(decoder: Decoder, plain: Callable[[int], PlanDriver]) -> None:
    expected = {name: request.token_ids[len(PROMPTS[name]) :] for name, request in plain(24).requests.items()}
    drafted = PlanDriver(decoder, runner_sizes(), seed=5)
    for name, prompt in PROMPTS.items():
        drafted.add(name, prompt, GREEDY)
    rng = np.random.default_rng(0)
    drafted.step({name: len(prompt) for name, prompt in PROMPTS.items()})
    while min(len(request.token_ids) - len(PROMPTS[name]) for name, request in drafted.requests.items()) < 16:
        drafts = {}
        for name, request in drafted.requests.items():
            done = len(request.token_ids) - len(PROMPTS[name])
            right = expected[name][done : done + int(rng.integers(0, 4))]
            drafts[name] = [*right, *([int(rng.integers(3, 90))] if rng.random() < 0.5 else [])]
        drafted.step(dict.fromkeys(PROMPTS, 1), drafts=drafts)
    for name, request in drafted.requests.items():
        generated = request.token_ids[len(PROMPTS[name]) :][:24]
        assert generated == expected[name][: len(generated)]
