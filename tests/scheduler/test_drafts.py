"""Draft tokens: verified in one step, rolled back where wrong, never seen by user or cache, given up before all else.

The shadow runner proposes as many as are allowed; every third proposal is WRONG_TOKEN.
"""

import numpy as np
import pytest

from hybrid.pools.sizing import Kinds
from hybrid.scheduler.config import SchedulerConfig
from tests.scheduler.harness import MIXTURES, Harness, tokens
from tests.scheduler.shadow import WRONG_TOKEN, expected_output

EVERY_MIXTURE = pytest.mark.parametrize("kinds", MIXTURES.values(), ids=MIXTURES)


@EVERY_MIXTURE
@pytest.mark.parametrize("plans", [1, 2])
def test_rejected_drafts_reach_neither_output_nor_cache(kinds: Kinds, plans: int) -> None:
    harness = Harness(config=SchedulerConfig(num_draft_tokens=3, max_plans_in_flight=plans), kinds=kinds, block_size=4)
    for seed in range(3):
        harness.add(f"{seed}", tokens(20, seed), max_tokens=30, stop_token_ids=())
    harness.finish_all()
    assert all(WRONG_TOKEN not in out for out in harness.outputs.values())
    cache = harness.memory.cache
    assert cache is not None
    for seed in range(3):
        known = [*tokens(20, seed), *harness.outputs[f"{seed}"]]
        for wrong_at in range(20, 50):
            asked = np.array([*known[:wrong_at], WRONG_TOKEN], dtype=np.int64)
            assert cache.match("0/", asked, len(asked)).matched_tokens <= wrong_at


@EVERY_MIXTURE
def test_progress_is_that_of_the_accepted_drafts(kinds: Kinds) -> None:
    """Computed and processed tokens stop one short of the known ones after every step, whatever was rejected."""
    harness = Harness(config=SchedulerConfig(num_draft_tokens=2), kinds=kinds)
    harness.add("a", tokens(20), max_tokens=30, stop_token_ids=())
    gained: list[int] = []
    while "a" not in harness.finished:
        before = len(harness.outputs["a"])
        harness.step()
        gained.append(len(harness.outputs["a"]) - before)
        table = harness.memory.table
        if "a" not in harness.finished:
            assert table.num_computed[0] == table.num_processed[0] == table.num_tokens[0] - 1
            assert table.placeholders[0] == table.drafts_in_flight[0] == 0
    assert set(gained) == {1, 2, 3} or set(gained) == {1, 3} or set(gained) == {1, 2}
    harness.finish_all()


def test_no_draft_passes_the_length_limit() -> None:
    """The last step carries only as many drafts as there are tokens left after the one it samples."""
    harness = Harness(config=SchedulerConfig(num_draft_tokens=3))
    harness.add("a", tokens(20), max_tokens=3, stop_token_ids=())
    assert harness.step() == {"a": 20}
    assert harness.step() == {"a": 2}
    harness.finish_all()
    harness.add("b", tokens(20, 2), max_tokens=1, stop_token_ids=())
    assert harness.step() == {"b": 20}
    harness.finish_all()


def test_nothing_after_a_stop_token_is_taken() -> None:
    """Also where the stop token is an accepted draft, and only after `min_tokens`."""
    harness = Harness(config=SchedulerConfig(num_draft_tokens=3))
    free = harness.add("free", tokens(20), max_tokens=30, stop_token_ids=())
    answer = expected_output(free)
    stop = next(token for index, token in enumerate(answer) if index >= 4 and token not in answer[:index])
    for min_tokens in (0, answer.index(stop) + 1, answer.index(stop) + 2):
        harness.add(f"{min_tokens}", tokens(20), max_tokens=30, stop_token_ids=(stop,), min_tokens=min_tokens)
    harness.finish_all()
    assert harness.outputs["0"] == answer[: answer.index(stop) + 1]
    assert harness.finished["0"].stop_token_id == stop and harness.finished["0"].reason == "stop"


def test_drafts_are_cut_before_rows_are() -> None:
    harness = Harness(config=SchedulerConfig(num_draft_tokens=3, max_num_batched_tokens=16))
    for seed in range(2):
        harness.add(f"{seed}", tokens(8, seed), max_tokens=30, stop_token_ids=())
    harness.step()
    harness.add("long", tokens(60, 5), max_tokens=30, stop_token_ids=())
    assert harness.step() == {"0": 4, "1": 4, "long": 8}
    harness.finish_all()

    tight = Harness(config=SchedulerConfig(num_draft_tokens=3, max_num_batched_tokens=5))
    for seed in range(2):
        tight.add(f"{seed}", tokens(2, seed), max_tokens=30, stop_token_ids=())
    tight.step()
    assert sorted(tight.step().values()) == [1, 4]
    tight.finish_all()


def test_drafts_are_given_up_before_anybody_is_retracted() -> None:
    """Two requests of 16 tokens in 4 blocks of 4 each fit without drafts, not with them."""
    harness = Harness(
        config=SchedulerConfig(num_draft_tokens=3, initial_output_ratio=0.0),
        block_size=4, num_full_blocks=8, enable_prefix_caching=False,
    )  # fmt: skip
    for seed in range(2):
        harness.add(f"{seed}", tokens(4, seed), max_tokens=12, stop_token_ids=())
    harness.finish_all()
    assert harness.scheduler.stats().retractions == 0


def test_a_row_with_drafts_in_the_air_is_not_planned_again() -> None:
    """How many of its tokens count is known only when the result is there."""
    harness = Harness(config=SchedulerConfig(num_draft_tokens=2, max_plans_in_flight=3))
    harness.add("a", tokens(20), max_tokens=30, stop_token_ids=())
    harness.step()
    with_drafts = harness.plan()
    assert with_drafts is not None and with_drafts.num_draft_tokens.tolist() == [2]
    assert harness.plan() is None
    harness.finish_all()
