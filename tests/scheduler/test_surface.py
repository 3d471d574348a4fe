"""The public surface at its edges: what is refused, with which words, and that a refusal changes nothing."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hybrid.adapters.registry import Adapter
from hybrid.pools.sizing import Kinds, PoolSizes
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepResult
from hybrid.scheduler.request import Gate, GateStatus, ImageInput, NewRequest
from hybrid.scheduler.scheduler import Scheduler
from tests.scheduler.harness import FULL, HYBRID, WINDOW, Harness, tokens


@pytest.mark.parametrize(
    ("kinds", "sizes", "request_", "message"),
    [
        (FULL, {"num_full_blocks": 3}, {}, "the full attention pool has 3 blocks in all and 4 are needed"),
        (WINDOW, {"num_window_blocks": 1}, {}, "the sliding window pool has 1 blocks in all and 2 are needed"),
        (FULL, {"encoder_tokens": 9}, {"images": (ImageInput("p", 0, 10),)}, "the encoder pool has 9 tokens in all"),
        (FULL, {"lora_units": 1}, {"adapter": Adapter("x", 1, 9)}, "the LoRA pool has 1 rank units in all and 2 are"),
    ],
)
def test_what_can_never_fit_is_refused_when_added(
    kinds: Kinds, sizes: dict[str, Any], request_: dict[str, Any], message: str
) -> None:
    harness = Harness(kinds=kinds, block_size=16, **sizes)
    before = harness.ledgers()
    with pytest.raises(ValueError, match=f"request 'a' can never run: {message}"):
        harness.add("a", tokens(40), max_tokens=10, **request_)
    assert harness.ledgers() == before and harness.scheduler.num_unfinished == 0
    harness.add("a", tokens(8), max_tokens=2)  # the name is free
    harness.finish_all()


def test_every_pool_that_is_too_small_is_named() -> None:
    harness = Harness(kinds=HYBRID, num_full_blocks=3, num_window_blocks=1)
    with pytest.raises(ValueError, match=r"full attention pool .* 4 are needed; the sliding window pool .* 2 are"):
        harness.add("a", tokens(40), max_tokens=10)


@pytest.mark.parametrize(
    ("prompt", "more", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1] * 64, {}, "the prompt has 64 tokens, max_model_len 64 leaves no room for output"),
        ([1, -3], {}, "token id -3 is negative"),
        ([1], {"max_tokens": 0}, "max_tokens 0 is less than 1"),
        ([1], {"min_tokens": 17}, "min_tokens 17 is not between 0 and max_tokens 16"),
        ([1], {"stop_token_ids": (3, -1)}, "stop token id -1 is negative"),
        ([1] * 9, {"images": (ImageInput("p", 5, 5),)}, "image at 5 with 5 tokens overlaps another or lies outside"),
        ([1] * 9, {"images": (ImageInput("p", 0, 5), ImageInput("q", 4, 2))}, "image at 4 with 2 tokens overlaps"),
        ([1] * 9, {"images": (ImageInput("p", 0, 0),)}, "image at 0 with 0 tokens"),
        ([1] * 40, {"images": (ImageInput("p", 0, 33),)}, "an image has 33 tokens, a step encodes at most 32"),
    ],
)  # fmt: skip
def test_malformed_requests_are_refused(prompt: list[int], more: dict[str, Any], message: str) -> None:
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=32), max_model_len=64)
    with pytest.raises(ValueError, match=f"request 'a': {message}"):
        harness.add("a", prompt, **more)
    assert harness.scheduler.num_unfinished == 0


def test_a_name_is_used_once_at_a_time() -> None:
    harness = Harness()
    harness.add("a", tokens(8), max_tokens=2)
    with pytest.raises(ValueError, match="request 'a' is already here"):
        harness.add("a", tokens(8), max_tokens=2)
    harness.finish_all()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens 0 is less than 1"),
        ({"max_skips": -1}, "max_skips -1 is negative"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy 'lifo' is not one of"),
        ({"composition": "both"}, "composition 'both' is not one of"),
        ({"initial_output_ratio": 1.5}, "initial_output_ratio 1.5 is not between 0 and 1"),
        ({"max_scan": 1.5}, "max_scan must be an integer, got 1.5"),
        ({"max_scan": None}, "max_scan must be an integer, got None"),
        ({"max_plans_in_flight": math.inf}, "max_plans_in_flight must be an integer, got inf"),
        ({"num_draft_tokens": True}, "num_draft_tokens must be an integer, got True"),
        ({"max_num_encoder_tokens": "5"}, "max_num_encoder_tokens must be an integer, got '5'"),
        ({"ageing_seconds": math.nan}, "ageing_seconds must be a finite number, got nan"),
        ({"disable_chunked_mm_input": 1}, "disable_chunked_mm_input must be true or false, got 1"),
        ({"max_image_tokens": 9, "max_num_encoder_tokens": 8}, "max_num_encoder_tokens 8 is less than the 9"),
        (
            {"max_image_tokens": 900, "min_image_tokens": 9, "max_num_encoder_tokens": 8},
            "max_num_encoder_tokens 8 is less than the 9",
        ),
        (
            {"max_image_tokens": 900, "min_image_tokens": 9, "disable_chunked_mm_input": True}
            | {"max_num_batched_tokens": 8},
            "a step of 8 tokens cannot hold an image of 9 tokens",
        ),
    ],
)
def test_impossible_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**setting)


@pytest.mark.parametrize(
    ("config", "sizes", "message"),
    [
        (
            {"max_plans_in_flight": 3},
            {},
            "a lookahead of 0 tokens, but 3 plans in flight and 0 drafts need 2",
        ),
        ({"num_draft_tokens": 4}, {}, "0 tokens, but 1 plans in flight and 4 drafts need 4"),
        ({"max_image_tokens": 300}, {}, "the encoder pool has 200 tokens in all and 300 are needed"),
        (
            {"max_image_tokens": 900, "min_image_tokens": 300},
            {},
            "the encoder pool has 200 tokens in all and 300 are needed",
        ),
        ({}, {"num_state_slots": 0}, "the recurrent state pool has 0 slots in all and 1 are needed"),
    ],
)
def test_pools_that_do_not_suit_the_settings_are_refused(
    config: dict[str, Any], sizes: dict[str, Any], message: str
) -> None:
    enough = PoolSizes(
        num_rows=1, num_full_blocks=100, num_window_blocks=100, num_state_slots=1, encoder_tokens=200, lora_units=0,
        block_size=16, sliding_window=16, max_model_len=64,
    )  # fmt: skip
    with pytest.raises(ValueError, match=message):
        Scheduler(SchedulerConfig(**config), replace(enough, **sizes), HYBRID)


def test_images_of_many_sizes_need_room_for_the_smallest_alone() -> None:
    """The largest ones are refused when their request is added."""
    config = SchedulerConfig(max_image_tokens=900, min_image_tokens=30, max_num_encoder_tokens=40)
    assert SchedulerConfig(max_image_tokens=9000, min_image_tokens=30).encoder_budget == 9000
    sizes = PoolSizes(
        num_rows=1, num_full_blocks=100, num_window_blocks=100, num_state_slots=1, encoder_tokens=35, lora_units=0,
        block_size=16, sliding_window=16, max_model_len=64,
    )  # fmt: skip
    scheduler = Scheduler(config, sizes, HYBRID)
    for count, message in (
        (36, "the encoder pool has 35 tokens in all and 36 are needed"),
        (41, "an image has 41 tokens, a step encodes at most 40"),
    ):
        new = NewRequest("r", np.zeros(50, dtype=np.int32), max_tokens=2, images=(ImageInput("a", 1, count),))
        with pytest.raises(ValueError, match=message):
            scheduler.add(new)
    scheduler.add(NewRequest("r", np.zeros(50, dtype=np.int32), max_tokens=2, images=(ImageInput("a", 1, 35),)))


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def table(*rows: list[int]) -> NDArray[np.int32]:
    return np.array(rows, dtype=np.int32).reshape(len(rows), -1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step_id": 1}, "result of step 1 while the oldest step in flight is 2"),
        ({"step_id": 3}, "result of step 3 while the oldest step in flight is 2"),
        ({"sampled_token_ids": table([5])}, "1 sampled rows, 2 rows sample"),
        ({"num_sampled": ints(1)}, "2 rows sample"),
        ({"num_sampled": ints(1, 0)}, r"num_sampled \[1, 0\] is not between 1 and 1 \+ drafts"),
        ({"num_sampled": ints(1, 4)}, r"num_sampled \[1, 4\] is not between 1 and 1 \+ drafts"),
        ({"num_sampled": ints(1, 3), "sampled_token_ids": table([5, 5], [5, 5])}, r"\(2, 2\) lacks columns"),
        ({"sampled_token_ids": table([5], [-1])}, "token -1 was sampled"),
        ({"draft_token_ids": table([1, 2, 3], [1, 2, 3])}, "3 drafts, num_draft_tokens is 2"),
        ({"draft_token_ids": table([1])}, "1 rows of drafts, 2 rows sample"),
        ({"num_drafts": ints(1)}, "rows of drafts, 2 rows sample"),
        ({"draft_token_ids": table([1], [1]), "num_drafts": ints(1, 2)}, r"num_drafts \[1, 2\] is not between 0 and 1"),
        ({"draft_token_ids": table([1], [1]), "num_drafts": ints(1, -1)}, r"num_drafts \[1, -1\] is not"),
    ],
)
def test_a_malformed_result_changes_nothing(wrong: dict[str, Any], message: str) -> None:
    harness = Harness(config=SchedulerConfig(num_draft_tokens=2), kinds=HYBRID)
    for seed in range(2):
        harness.add(f"{seed}", tokens(20, seed), max_tokens=9, stop_token_ids=())
    harness.step()
    harness.plan()
    _, good = harness.results[0]
    assert good is not None
    result = StepResult(2, table([5], [6]), ints(1, 1), table([], []), ints(0, 0))
    before, known = harness.ledgers(), harness.memory.table.num_tokens.copy()
    with pytest.raises(ValueError, match=message):
        harness.scheduler.commit(replace(result, **wrong))
    assert harness.ledgers() == before and (harness.memory.table.num_tokens == known).all()
    assert harness.scheduler.num_in_flight == 1
    harness.finish_all()


def test_results_need_a_step() -> None:
    harness = Harness()
    with pytest.raises(ValueError, match="result of step 1, but no step is in flight"):
        harness.scheduler.commit(StepResult(1, table([5]), ints(1), table([]), ints(0)))
    with pytest.raises(ValueError, match=r"step 1 is not the oldest step in flight \(None\)"):
        harness.scheduler.fail(1, "boom")
    harness.add("a", tokens(20))
    harness.plan()
    with pytest.raises(ValueError, match=r"step 2 is not the oldest step in flight \(1\)"):
        harness.scheduler.fail(2, "boom")
    harness.finish_all()


def test_explanations_are_sentences_with_numbers() -> None:
    now = GateStatus.PENDING
    harness = Harness(
        config=SchedulerConfig(max_num_batched_tokens=16, initial_output_ratio=0.0),
        num_rows=3, num_full_blocks=4, block_size=16, enable_prefix_caching=False,
    )  # fmt: skip
    explain = harness.scheduler.explain
    assert explain("nobody") == "request 'nobody' is not here: it never was, or it has ended"
    harness.add("gated", tokens(8, 9), max_tokens=2, gates=(Gate("grammar", lambda: now), Gate("image", lambda: now)))
    harness.add("a", tokens(40, 1), max_tokens=20, stop_token_ids=())
    harness.add("b", tokens(30, 2), max_tokens=20, stop_token_ids=())
    assert explain("gated") == "request 'gated' waits for grammar, image to become ready and holds no memory"
    assert explain("a") == "request 'a' waits for the next step; every pool can hold it (3 request rows available)"
    assert explain("b") == "request 'b' waits behind 1 earlier requests; every pool could hold it now"
    harness.step()
    assert explain("a") == "request 'a' runs in row 0: 16 of 40 known tokens computed"
    for _ in range(3):
        harness.step()
    assert explain("b") == (
        "request 'b' waits because the full attention pool has 1 of 4 blocks available and 2 are needed"
    )
    now = GateStatus.READY
    harness.finish_all()


def test_a_running_prefill_says_what_holds_it_back() -> None:
    """Both have begun; the image of the second fills the encoder pool when the first comes to its own."""
    harness = Harness(
        config=SchedulerConfig(max_num_batched_tokens=40, long_prefill_token_threshold=20), encoder_tokens=20
    )
    for seed, (name, offset) in enumerate({"a": 40, "b": 30}.items()):
        harness.add(name, tokens(60, seed), max_tokens=5, images=(ImageInput(name, offset, 20),))
    assert [harness.step() for _ in range(2)] == [{"a": 20, "b": 20}, {"a": 20, "b": 20}]
    harness.plan()
    assert harness.scheduler.explain("a") == (
        "request 'a' runs in row 0: 40 of 60 known tokens computed, held back because the encoder pool has 0 of 20 "
        "tokens available and 20 are needed"
    )
    harness.finish_all()


def test_stats_are_a_picture_of_now() -> None:
    harness = Harness(config=SchedulerConfig(max_plans_in_flight=2), num_rows=1)
    for seed in range(2):
        harness.add(f"{seed}", tokens(20, seed), max_tokens=5, stop_token_ids=())
    harness.plan()
    stats = harness.scheduler.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_in_flight) == (1, 1, 1)
    assert stats.ledgers["request row"].held == 1
    harness.finish_all()
    assert stats.num_waiting == 1, "an old picture does not change"
