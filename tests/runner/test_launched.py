"""Steps that are launched before the one before is known: the host waits for nothing, and what a failed step leaves
behind reaches nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hybrid import LLM, SamplingParams
from hybrid.models.ops.transfer import Download
from hybrid.runner.launched import RunnerOutput
from hybrid.runner.model_runner import ModelRunner
from hybrid.runner.sampler import NonFiniteLogits
from tests.runner.plans import PlanDriver, native_model, random_reference, runner_sizes, small_config

POISON = 7  # a token whose embedding is not a number


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one entry whenever the host waits for the device."""
    seen: list[int] = []
    wait = Download.wait

    def noted(download: Download) -> NDArray[Any]:
        seen.append(1)
        return wait(download)

    monkeypatch.setattr(Download, "wait", noted)
    return seen


def prompt_of(length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(8, 61, length)]


def new_driver(graphs: bool = False, poison: bool = False) -> PlanDriver:
    model = native_model(random_reference(small_config("mFs")))
    if poison:
        model._embedding[POISON] = torch.nan
    driver = PlanDriver(model, runner_sizes())
    driver.runner = ModelRunner(model, runner_sizes(), decode_graphs=graphs)
    return driver


def launch(driver: PlanDriver, counts: Mapping[str, int]) -> Callable[[], RunnerOutput]:
    plan = driver.plan(counts)
    for request, samples in zip(counts, plan.samples):
        if samples:
            driver.requests[request].token_ids.append(-1)  # as the scheduler, which counts it and does not know it
    return driver.runner.launch(plan)


def tokens(results: Sequence[Callable[[], RunnerOutput]]) -> list[list[int]]:
    return [result().result.sampled_token_ids[:, 0].tolist() for result in results]


PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=1.0, top_p=0.9, top_k=20, min_p=0.01),
    "reported": SamplingParams(temperature=1.0, logprobs=3),
    "biased": SamplingParams(temperature=1.0, logit_bias={9: 2.0}, min_tokens=3),
    "penalised": SamplingParams(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.5),
}


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("names", [("greedy",), ("drawn", "reported", "biased"), ("drawn", "penalised")])
def test_the_next_steps_are_launched_before_the_first_is_known(
    names: tuple[str, ...], graphs: bool, waits: list[int]
) -> None:
    def drivers_with_requests() -> PlanDriver:
        driver = new_driver(graphs)
        for seed, name in enumerate(names):
            driver.add(name, prompt_of(9 + seed, seed), PARAMS[name], seed=seed)
        return driver

    prompts = {name: 9 + seed for seed, name in enumerate(names)}
    one_by_one, ahead = drivers_with_requests(), drivers_with_requests()
    steps = [prompts, *[dict.fromkeys(names, 1)] * 5]
    expected = tokens([launch(one_by_one, counts) for counts in steps[:1]])
    for counts in steps[1:]:
        expected += tokens([launch(one_by_one, counts)])
    waits.clear()
    results = [launch(ahead, counts) for counts in steps]
    assert len(waits) == (5 if "penalised" in names else 0)  # each time for the step before
    assert tokens(results) == expected
    assert tokens(results[::-1]) == expected[::-1]  # once more, and in whatever order


def test_a_row_that_is_new_meanwhile_keeps_its_own_tokens() -> None:
    driver = new_driver()
    driver.add("old", prompt_of(5, 0))
    late = launch(driver, {"old": 5})
    row = driver.requests["old"].row
    driver.finish("old")
    driver.add("new", prompt_of(9, 1))
    assert driver.requests["new"].row == row
    driver.step({"new": 8})
    late()
    assert driver.runner.mirror.token_ids[row, :9].tolist() == driver.requests["new"].token_ids


def test_what_is_launched_after_a_failed_step_counts_for_none_of_its_rows() -> None:
    driver, alone = new_driver(poison=True), new_driver()
    for one in (driver, alone):
        one.add("good", prompt_of(9, 0))
    driver.add("bad", [*prompt_of(4, 1), POISON])
    driver.add("later", prompt_of(6, 2))
    first = launch(driver, {"good": 9, "bad": 5})
    second = launch(driver, {"good": 1, "bad": 1, "later": 6})
    with pytest.raises(NonFiniteLogits, match="request bad"):
        first()
    result = second().result
    expected = [launch(alone, {"good": count})() for count in (9, 1)]
    assert result.sampled_token_ids[0].tolist() == expected[1].result.sampled_token_ids[0].tolist()
    assert (result.sampled_token_ids >= 0).all()
    with pytest.raises(NonFiniteLogits, match="request bad"):
        first()  # however often one asks


def test_a_failed_step_whose_result_nobody_asked_for_hides_no_later_failure() -> None:
    """As after an interrupt."""
    driver = new_driver(poison=True)
    driver.add("bad", [*prompt_of(4, 1), POISON])
    launch(driver, {"bad": 5})
    row = driver.requests["bad"].row
    driver.finish("bad")
    driver.add("worse", [*prompt_of(6, 1), POISON])
    assert driver.requests["worse"].row == row
    driver.add("good", prompt_of(3, 2))
    launch(driver, {"good": 3})()
    with pytest.raises(NonFiniteLogits, match="request worse"):
        launch(driver, {"worse": 7})()


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_the_request_to_blame_ends_alone(in_flight: int) -> None:
    llm = LLM("tiny", memory="32MiB", max_num_seqs=4, max_plans_in_flight=in_flight)
    params = SamplingParams(temperature=1.0, repetition_penalty=1.1, max_tokens=20, ignore_eos=True)
    prompts = [prompt_of(30, seed) for seed in range(6)]
    expected = llm.generate(prompts, params, use_tqdm=False)
    llm.reset_prefix_cache()
    poison = next(token for token in range(8, 300) if all(token not in o.outputs[0].token_ids for o in expected))
    model = llm.engine._runner._model  # type: ignore[attr-defined]
    model._embedding = model._embedding.clone()
    model._embedding[poison] = torch.nan
    prompts = [[token if token != poison else 61 for token in prompt] for prompt in prompts]
    *good, bad = llm.generate([*prompts, [*prompts[0], poison]], params, use_tqdm=False)
    assert bad.error is not None and "not finite" in bad.error
    assert [output.error for output in good] == [None] * 6
    assert [len(output.outputs[0].token_ids) for output in good] == [20] * 6
    assert llm.stats().failed_steps == 1
    llm.engine.scheduler.check()
    assert not llm.engine.is_busy


@pytest.mark.parametrize("in_flight", [1, 2])
def test_what_is_not_a_number_is_shared_with_nobody(in_flight: int) -> None:
    """A chunk that samples nothing computes a poisoned token behind a beginning that others have too."""
    llm = LLM("tiny", memory="32MiB", max_num_seqs=4, max_num_batched_tokens=24, max_plans_in_flight=in_flight)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    common = prompt_of(20, 0)
    prompts = [[*common, *prompt_of(30, seed)] for seed in range(1, 4)]
    expected = llm.generate(prompts, params, use_tqdm=False)
    llm.reset_prefix_cache()
    said = {token for output in expected for token in (*output.prompt_token_ids, *output.outputs[0].token_ids)}
    poison = next(token for token in range(8, 300) if token not in said)
    model = llm.engine._runner._model  # type: ignore[attr-defined]
    model._embedding = model._embedding.clone()
    model._embedding[poison] = torch.nan
    [bad] = llm.generate([[*common, poison, *prompt_of(30, 9)]], params, use_tqdm=False)
    assert bad.error is not None and "not finite" in bad.error
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * 3
    assert [output.outputs[0].token_ids for output in outputs] == [one.outputs[0].token_ids for one in expected]
    assert llm.stats().failed_steps == 1


@pytest.mark.parametrize("order", [("bad", "long", "good"), ("good", "long", "bad"), ("long", "bad", "good")])
def test_a_chunk_that_is_to_blame_is_found_in_any_order(order: tuple[str, ...]) -> None:
    driver = new_driver(poison=True)
    prompts = {"good": prompt_of(6, 0), "long": prompt_of(30, 1), "bad": [POISON, *prompt_of(30, 2)]}
    for name, prompt in prompts.items():
        driver.add(name, prompt)
    launch(driver, {"good": 6, "long": 3})()
    counts = {"good": 1, "long": 5, "bad": 9}
    with pytest.raises(NonFiniteLogits, match=r"request bad$"):
        launch(driver, {name: counts[name] for name in order})()
