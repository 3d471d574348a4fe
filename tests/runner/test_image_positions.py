"""Rows with images under ropes of three positions: any schedule generates what transformers generates."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hybrid.pools.specs import EncoderSpec
from hybrid.runner.loading import load
from tests.models.families.mrope import CASES, ImagePrompt, Layout, TextOracle
from tests.runner.plans import PlanDriver, runner_sizes

LAYOUTS: list[Layout] = [
    [6, (3, 4), 9],
    [(5, 2), 1, (1, 6), 14],
    [11],
    [2, (4, 4), 3, (2, 5), 1, (3, 1)],
    [25, (2, 2), 2],
]
MAX_TOKENS = 12


@pytest.fixture(scope="module", params=CASES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextOracle:
    return TextOracle(request.param, tmp_path_factory.mktemp("checkpoint"))


def driver_of(oracle: TextOracle, seed: int, decode_graphs: bool = False) -> PlanDriver:
    loaded = load(oracle.folder, torch.float32)
    spec = EncoderSpec(loaded.model.decoder.image_embedding_size, max_tokens_per_image=40)
    loaded.decoder.spec = replace(loaded.decoder.spec, encoder=spec)
    loaded.decoder.image_token_id = oracle.image_token_id
    return PlanDriver(loaded.decoder, runner_sizes(encoder_tokens=500), seed=seed, decode_graphs=decode_graphs)


def add(driver: PlanDriver, request_id: str, prompt: ImagePrompt, generated: tuple[int, ...] = ()) -> None:
    """generated: tokens that are known already, as after a retraction."""
    driver.add(request_id, [*prompt.token_ids, *generated], image_positions=prompt.positions)
    driver.requests[request_id].num_prompt_tokens = len(prompt.token_ids)
    driver.embed(request_id, prompt.by_offset)


def run(driver: PlanDriver, seed: int) -> dict[str, tuple[int, ...]]:
    """Random chunks of random rows until each has MAX_TOKENS, the rows then reused by others."""
    rng = np.random.default_rng(seed)
    done: dict[str, tuple[int, ...]] = {}
    while driver.requests:
        counts = {}
        for request_id, request in driver.requests.items():
            if rng.random() < 0.8:
                left = len(request.token_ids) - request.num_computed
                counts[request_id] = int(min(left, rng.choice([1, 2, 3, 7, 30])))
        if counts:
            driver.step(dict(sorted(counts.items(), key=lambda item: rng.random())))
        for request_id, request in list(driver.requests.items()):
            generated = request.token_ids[request.num_prompt_tokens :]
            if len(generated) >= MAX_TOKENS:
                done[request_id] = tuple(generated)
                driver.finish(request_id)
    return done


@pytest.mark.parametrize(("seed", "decode_graphs"), [(0, False), (1, False), (2, True)])
def test_any_schedule(oracle: TextOracle, seed: int, decode_graphs: bool) -> None:
    driver = driver_of(oracle, seed, decode_graphs)
    prompts = {str(i): oracle.prompt(layout, i) for i, layout in enumerate(LAYOUTS)}
    for request_id, prompt in prompts.items():
        add(driver, request_id, prompt)
    found = run(driver, seed)
    for request_id, prompt in prompts.items():
        assert oracle.continues(prompt, found[request_id])
    # a row that had images has none for its next owner, and the other way round
    swapped = {request_id: oracle.prompt(layout, 9) for request_id, layout in zip(prompts, reversed(LAYOUTS))}
    for request_id, prompt in swapped.items():
        add(driver, request_id, prompt)
    found = run(driver, seed + 1)
    for request_id, prompt in swapped.items():
        assert oracle.continues(prompt, found[request_id])


def test_one_token_at_a_time(oracle: TextOracle) -> None:
    """Steps behind all images are those that graphs serve."""
    driver = driver_of(oracle, 0, decode_graphs=True)
    prompts = {str(i): oracle.prompt(layout, i) for i, layout in enumerate(LAYOUTS)}
    for request_id, prompt in prompts.items():
        add(driver, request_id, prompt)
    for request_id, tokens in driver.run(MAX_TOKENS, chunk=1).items():
        assert oracle.continues(prompts[request_id], tokens)
    ends = [0 if prompt.positions is None else prompt.positions.end for prompt in prompts.values()]
    steps = max(len(prompt.token_ids) for prompt in prompts.values()) + MAX_TOKENS - 1
    assert driver.runner.graphs is not None and driver.runner.graphs.num_steps == steps - max(ends) > 9


def test_a_retracted_row_goes_on_where_it_was(oracle: TextOracle) -> None:
    prompts = [oracle.prompt(layout, i) for i, layout in enumerate(LAYOUTS)]
    driver = driver_of(oracle, 0)
    for i, prompt in enumerate(prompts):
        add(driver, str(i), prompt)
    expected = run(driver, 0)
    for i, prompt in enumerate(prompts):
        add(driver, str(i), prompt, expected[str(i)][: 2 * i + 1])
    assert run(driver, 1) == expected


def test_a_prompt_that_begins_as_another_goes_on_from_its_blocks(oracle: TextOracle) -> None:
    """At every kind of position: before, inside and behind images; further images come after it."""
    driver = driver_of(oracle, 3)
    first = oracle.prompt([5, (3, 4), 6, (2, 3), 8], 1)
    add(driver, "first", first)
    cuts, slots = [3, 5, 9, 16, 19, 25, 31, 35], {}
    for begin, end in zip([0, *cuts], [*cuts, len(first.token_ids)]):
        snapshots = []
        if end in cuts:
            slots[end] = driver.free_slot()
            snapshots = [("first", end, slots[end])]
        driver.step({"first": end - begin}, snapshots)
    longer = oracle.prompt([5, (3, 4), 6, (2, 3), 8, (1, 5), 4], 2)
    count = len(first.embeddings)
    longer.token_ids[: len(first.token_ids)] = first.token_ids
    longer.embeddings[:count] = first.embeddings
    for cut in cuts:
        add(driver, str(cut), longer)
        driver.resume(str(cut), "first", cut, slots[cut])
    found = run(driver, 4)
    assert oracle.continues(first, found.pop("first"))
    assert len(found) == len(cuts)
    for tokens in found.values():
        assert oracle.continues(longer, tokens)
