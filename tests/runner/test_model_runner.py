"""ModelRunner end to end: sampling, images, drafts, grammar, and what it refuses."""

import dataclasses

import numpy as np
import pytest
import torch

from hybrid.encoders.families.hybrid_native import NativeEncoder
from hybrid.encoders.inputs import EncoderInput
from hybrid.encoders.vit import VisionTower
from hybrid.models.context import StateCache
from hybrid.models.native_tensors import VISION_PREFIX
from hybrid.models.reference import NativeReference
from hybrid.runner.model_runner import ModelRunner
from hybrid.sampling_params import SamplingParams
from tests.runner.plans import (
    PlanDriver,
    assert_greedy,
    native_model,
    random_reference,
    runner_sizes,
    small_config,
)

IMAGE = 2
VISION = {
    "image_size": 16,
    "patch_size": 4,
    "merge_size": 2,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "layer_norm_eps": 1e-6,
}
IMAGE_TOKENS = 4


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 61, length)]


def picture(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(seed).uniform(-1, 1, (3, 16, 16)).astype(np.float32)


def tower(reference: NativeReference) -> NativeEncoder:
    assert reference.config.vision_config is not None
    tensors = reference.state_dict()
    return NativeEncoder(VisionTower(reference.config.vision_config, lambda name: tensors[VISION_PREFIX + name]))


@pytest.mark.parametrize("mixers", ["mFs", "F"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_image_embeddings_take_the_place_of_placeholders(mixers: str, chunk: int) -> None:
    reference = random_reference(small_config(mixers, vision_config=VISION))
    driver = PlanDriver(native_model(reference), runner_sizes(), tower(reference))
    placeholders = [IMAGE] * IMAGE_TOKENS
    prompts = {
        "two pictures": [*prompt_of(3), *placeholders, 9, *placeholders, *prompt_of(5)],
        "picture first": [*placeholders, *prompt_of(2, 1)],
        "none": prompt_of(12, 2),
    }
    pictures = {"two pictures": {3: 10, 8: 11}, "picture first": {0: 12}, "none": {}}
    for name, prompt in prompts.items():
        images = {position: (f"h{seed}", picture(seed), IMAGE_TOKENS) for position, seed in pictures[name].items()}
        driver.add(name, prompt, images=images)
    tokens = driver.run(max_tokens=6, chunk=chunk)
    for name, prompt in prompts.items():
        embeds = None
        if pictures[name]:
            pixels = torch.from_numpy(np.stack([picture(seed) for seed in pictures[name].values()]))
            with torch.no_grad():
                embeds = reference.vision(pixels).flatten(0, 1)
        assert_greedy(reference, prompt, tokens[name], embeds)
    assert driver.runner.num_encoded_images == 3


@pytest.mark.parametrize("mixers", ["F", "sF", "m", "mFsM"])
def test_verified_drafts_do_not_change_the_output(mixers: str) -> None:
    reference = random_reference(small_config(mixers))
    prompts = {"a": prompt_of(11), "b": prompt_of(6, 1), "c": prompt_of(20, 2)}
    params = {"a": SamplingParams(temperature=0.0), "b": SamplingParams(temperature=0.8, presence_penalty=1.0)}
    plain = PlanDriver(native_model(reference), runner_sizes())
    drafted = PlanDriver(native_model(reference), runner_sizes(), seed=5)
    for driver in (plain, drafted):
        for name, prompt in prompts.items():
            driver.add(name, prompt, params.get(name, SamplingParams(temperature=1.0)), seed=len(name))
    expected = plain.run(max_tokens=24, chunk=100)
    rng = np.random.default_rng(0)
    drafted.step({name: len(prompt) for name, prompt in prompts.items()})
    steps = 0
    while min(len(r.token_ids) - r.num_prompt_tokens for r in drafted.requests.values()) < 16:
        drafts = {}
        for name, request in drafted.requests.items():
            done = len(request.token_ids) - request.num_prompt_tokens
            right = expected[name][done : done + int(rng.integers(0, 4))]
            wrong = [int(rng.integers(3, 61))] if rng.random() < 0.5 else []
            drafts[name] = [*right, *wrong]
        drafted.step(dict.fromkeys(prompts, 1), drafts=drafts)
        steps += 1
    assert steps < 14
    for name, request in drafted.requests.items():
        generated = request.token_ids[request.num_prompt_tokens :][:24]
        assert generated == expected[name][: len(generated)]


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 4])
def test_a_row_with_drafts_leaves_its_state_after_the_accepted_ones(num_accepted: int) -> None:
    model = native_model(random_reference(small_config("mFM")))
    prompt = prompt_of(11)
    plain, drafted = PlanDriver(model, runner_sizes()), PlanDriver(model, runner_sizes(), seed=1)
    plain.add("r", prompt)
    plain.run(max_tokens=num_accepted + 1, chunk=100)
    plain.step({"r": 1})  # computes the last of these tokens
    drafted.add("r", prompt)
    drafted.step({"r": 11})
    *right, following = plain.requests["r"].token_ids[12:]
    assert len(right) == num_accepted
    wrong = [] if num_accepted == 4 else [3 if following != 3 else 4, 5]
    drafted.step({"r": 1}, drafts={"r": [*right, *wrong]})
    assert drafted.requests["r"].num_computed == plain.requests["r"].num_computed
    states = [
        [
            t[driver.requests["r"].state_slot]
            for c in driver.runner.caches.layers
            if isinstance(c, StateCache)
            for t in (c.conv, c.ssm)
        ]
        for driver in (plain, drafted)
    ]
    for one, other in zip(*states):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_sampled_tokens_depend_on_neither_chunking_nor_company_nor_retraction() -> None:
    model = native_model(random_reference(small_config("mFs")))
    params = SamplingParams(temperature=1.0, top_p=0.95, repetition_penalty=1.1)
    prompt = prompt_of(40)
    whole = PlanDriver(model, runner_sizes())
    whole.add("r", prompt, params, seed=5)
    expected = whole.run(max_tokens=12, chunk=100)["r"]
    crowd = PlanDriver(model, runner_sizes(), seed=2)
    for i in range(5):
        crowd.add(f"other{i}", prompt_of(10 * i + 1, i), params, seed=i)
    crowd.add("r", prompt, params, seed=5)
    assert crowd.run(max_tokens=12, chunk=7)["r"] == expected
    # retracted after 5 tokens: it comes back with them as known tokens
    again = PlanDriver(model, runner_sizes(), seed=3)
    again.add("r", [*prompt, *expected[:5]], params, seed=5)
    again.requests["r"].num_prompt_tokens = len(prompt)
    assert again.run(max_tokens=12, chunk=100)["r"] == expected
    other = PlanDriver(model, runner_sizes())
    other.add("r", prompt, params, seed=6)
    assert other.run(max_tokens=12, chunk=100)["r"] != expected


def test_log_probabilities_come_with_the_rows_that_asked() -> None:
    driver = PlanDriver(native_model(random_reference(small_config("F"))), runner_sizes())
    driver.add("quiet", prompt_of(4))
    driver.add("asking", prompt_of(9, 1), SamplingParams(temperature=1.0, logprobs=2))
    driver.add("prefilling", prompt_of(30, 2), SamplingParams(temperature=1.0, logprobs=2))
    plan = driver.plan({"prefilling": 10, "quiet": 4, "asking": 9})
    output = driver.runner.execute(plan)
    assert output.result.sampled_token_ids.shape == (2, 1)
    quiet, asking = output.logprobs
    assert quiet is None
    assert asking is not None
    assert [entry.token_id for entry in asking] == output.result.sampled_token_ids[1].tolist()
    assert len(asking[0].top_token_ids) == 2


def test_a_grammar_mask_is_applied_to_its_row() -> None:
    driver = PlanDriver(native_model(random_reference(small_config("F"))), runner_sizes())
    driver.add("free", prompt_of(4))
    driver.add("bound", prompt_of(9, 1))
    plan = driver.plan({"free": 4, "bound": 9})
    plan = dataclasses.replace(plan, needs_grammar=np.array([False, True]))
    mask = np.array([0, 1 << 5], dtype=np.int32)  # token 37 alone
    output = driver.runner.execute(plan, lambda: {driver.requests["bound"].row: mask})
    assert int(output.result.sampled_token_ids[1, 0]) == 37


def test_a_step_that_samples_nothing_returns_an_empty_result() -> None:
    driver = PlanDriver(native_model(random_reference(small_config("mF"))), runner_sizes())
    driver.add("r", prompt_of(30))
    plan = driver.plan({"r": 10})
    output = driver.runner.execute(plan)
    assert output.result.step_id == plan.step_id
    assert output.result.sampled_token_ids.shape[0] == 0
    assert output.logprobs == ()


def test_a_plan_without_rows_still_encodes_and_copies() -> None:
    reference = random_reference(small_config("F", vision_config=VISION))
    driver = PlanDriver(native_model(reference), runner_sizes(), tower(reference))
    driver.add("r", [IMAGE] * IMAGE_TOKENS, images={0: ("h", picture(0), IMAGE_TOKENS)})
    output = driver.runner.execute(driver.plan({}))
    assert len(output.result.num_sampled) == 0
    encoder = driver.runner.caches.encoder
    assert encoder is not None
    assert torch.isfinite(encoder[driver.requests["r"].images[0][1]]).all()


def test_what_the_runner_refuses() -> None:
    model = native_model(random_reference(small_config("F")))
    with pytest.raises(ValueError, match="max_model_len 500 exceeds the model's 256 positions"):
        ModelRunner(model, runner_sizes(max_model_len=500))
    runner = ModelRunner(model, runner_sizes())
    runner.add_request("r", SamplingParams())
    with pytest.raises(ValueError, match="'r' exists already"):
        runner.add_request("r", SamplingParams())
    with pytest.raises(ValueError, match="'s' brings images, but the model takes none"):
        runner.add_request(
            "s", SamplingParams(), {"h": EncoderInput("h", {"pixel_values": picture(0)}, (IMAGE_TOKENS,))}
        )
    runner.remove_request("r")
    runner.remove_request("never was")
    runner.add_request("r", SamplingParams())
    with pytest.raises(ValueError, match="num_rows 0 is less than 1"):
        runner_sizes(num_rows=0)
    with pytest.raises(ValueError, match="num_state_slots -1 is negative"):
        runner_sizes(num_state_slots=-1)
