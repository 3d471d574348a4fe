"""Failures that public engines had with images, and with requests that wait for something outside the pools."""

import pytest

from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import Gate, GateStatus, ImageInput
from tests.scheduler.harness import HYBRID, MIXTURES, Harness, tokens


def test_an_image_larger_than_the_cache_is_refused_at_once() -> None:
    """It looped for ever."""
    harness = Harness(encoder_tokens=600)
    with pytest.raises(ValueError, match="the encoder pool has 600 tokens in all and 601 are needed"):
        harness.add("a", tokens(700), images=(ImageInput("large", 0, 601),))
    harness.add("a", tokens(700), images=(ImageInput("just", 0, 600),))
    harness.finish_all()


@pytest.mark.parametrize("name", MIXTURES)
def test_unsplit_images_and_a_full_cache_do_not_wait_for_each_other(name: str) -> None:
    """The alignment rule waited for room in the encoder cache, the cache for a chunk that the rule did not allow."""
    config = SchedulerConfig(max_num_batched_tokens=64, disable_chunked_mm_input=True)
    harness = Harness(config=config, kinds=MIXTURES[name], encoder_tokens=60, block_size=16)
    images = tuple(ImageInput(f"picture {i}", 10 + 61 * i, 60) for i in range(4))
    for seed in range(3):
        harness.add(f"{seed}", tokens(260, seed), images=images, max_tokens=4, resume_hints=(40, 100))
    harness.run(200)
    harness.assert_outputs()
    harness.assert_idle()


@pytest.mark.parametrize("name", MIXTURES)
def test_an_unsplit_image_is_not_resumed_in_its_middle(name: str) -> None:
    """The prompt ends with an image: the last position from which it could resume lies inside, and is not used."""
    config = SchedulerConfig(max_num_batched_tokens=64, disable_chunked_mm_input=True)
    harness = Harness(config=config, kinds=MIXTURES[name])
    for request_id in ("first", "second"):
        image = ImageInput("picture", 20, 30)
        harness.add(request_id, tokens(50), images=(image,), max_tokens=4, resume_hints=(35,))
        harness.finish_all()
    assert harness.hit("second") == 20


def test_an_unsplit_image_that_the_window_cannot_hold_is_refused() -> None:
    """Its own tokens and the window before it are in use at once."""
    config = SchedulerConfig(disable_chunked_mm_input=True)
    harness = Harness(config=config, kinds=HYBRID, block_size=8, sliding_window=9, num_window_blocks=5)
    with pytest.raises(ValueError, match="the sliding window pool has 5 blocks in all and 6 are needed"):
        harness.add("a", tokens(100), images=(ImageInput("picture", 40, 30),))
    harness.add("a", tokens(100), images=(ImageInput("picture", 43, 24),))
    harness.finish_all()
    with pytest.raises(ValueError, match="the sliding window pool"):
        Harness(
            config=SchedulerConfig(disable_chunked_mm_input=True, max_image_tokens=30),
            kinds=HYBRID, block_size=8, sliding_window=9, num_window_blocks=3,
        )  # fmt: skip


def test_an_image_stays_until_its_last_token_is_computed() -> None:
    """An entry was released, and its place used again, before the chunk that needed it."""
    config = SchedulerConfig(max_num_batched_tokens=10, max_plans_in_flight=2, max_num_encoder_tokens=20)
    harness = Harness(config=config, encoder_tokens=20)
    harness.add("a", tokens(30, 1), images=(ImageInput("first", 2, 20),), max_tokens=3)
    harness.add("b", tokens(30, 2), images=(ImageInput("second", 0, 20),), max_tokens=3)
    processed = 0
    while "second" not in harness.runner.encoded:
        processed = int(harness.memory.table.num_processed[0])
        if harness.plan() is None:
            harness.commit()
    assert processed >= 22
    harness.finish_all()
    assert harness.runner.encoded == ["first", "second"]


def test_the_same_image_twice_in_one_prompt_is_encoded_once() -> None:
    harness = Harness()
    images = (ImageInput("picture", 0, 10), ImageInput("picture", 15, 10))
    harness.add("a", tokens(30), images=images, max_tokens=3)
    harness.finish_all()
    assert harness.runner.encoded == ["picture"]


def test_images_of_a_failed_step_are_encoded_again() -> None:
    """Also for a request that shared the image in a later step, still in flight."""
    harness = Harness(config=SchedulerConfig(max_plans_in_flight=2))
    image = (ImageInput("picture", 2, 20),)
    harness.add("a", tokens(30, 1), images=image, max_tokens=3)
    harness.plan(fails=True)
    harness.add("b", tokens(30, 2), images=image, max_tokens=3)
    harness.plan()
    harness.finish_all()
    assert harness.runner.encoded == ["picture", "picture"]
    assert harness.scheduler.stats().failed_steps == 1


def test_what_was_computed_from_a_failed_image_is_not_remembered() -> None:
    """The request that shared it had been finished by its caller, and only waited for its step to end."""
    harness = Harness(config=SchedulerConfig(max_plans_in_flight=2))
    image = (ImageInput("picture", 2, 20),)
    harness.add("a", tokens(30, 1), images=image, max_tokens=3)
    harness.plan(fails=True)
    harness.add("b", tokens(30, 2), images=image, max_tokens=3)
    harness.plan()
    harness.finish("b")
    harness.run()
    harness.add("like b", tokens(30, 2), images=image, max_tokens=3)
    harness.finish_all()


def test_a_parked_request_is_not_starved_by_a_used_up_budget() -> None:
    """Readiness is looked at outside any budget: whoever became ready is next, although the step was full."""
    status = GateStatus.PENDING
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=4))
    harness.add("parked", tokens(4, 0), max_tokens=2, gates=(Gate("grammar", lambda: status),), stop_token_ids=())
    for seed in range(1, 9):
        harness.add(f"{seed}", tokens(4, seed), max_tokens=2, stop_token_ids=())
    assert harness.step() == {"1": 4}
    status = GateStatus.READY
    assert harness.step() == {"1": 1, "parked": 3}
    harness.finish_all()
