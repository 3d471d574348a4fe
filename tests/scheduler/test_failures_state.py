"""Failures that public engines had with recurrent states: each must show here if it ever happens to us.

The shadow runner raises WrongMemory when a chunk starts from a state that has not seen exactly the tokens before it.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from hybrid.pools.sizing import Kinds
from hybrid.scheduler.config import SchedulerConfig
from tests.scheduler.harness import HYBRID, MIXTURES, STATE, Harness, tokens
from tests.scheduler.shadow import POISON

FULL_AND_STATE = MIXTURES["full+state"]
WITH_STATE = pytest.mark.parametrize("kinds", [STATE, FULL_AND_STATE, HYBRID], ids=["state", "full+state", "hybrid"])


@WITH_STATE
def test_a_chunk_that_ends_inside_a_block_publishes_its_true_length(kinds: Kinds) -> None:
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=20), kinds=kinds, block_size=16)
    harness.add("cut", tokens(50))
    harness.step()
    harness.abort("cut")
    harness.add("again", tokens(50))
    harness.finish_all()
    assert harness.hit("again") == 20


@WITH_STATE
def test_a_state_is_invisible_until_its_step_was_processed(kinds: Kinds) -> None:
    harness = Harness(config=SchedulerConfig(max_plans_in_flight=2, min_shared_tokens=1000), kinds=kinds)
    harness.add("a", tokens(40))
    harness.plan()
    harness.add("b", tokens(40))
    second = harness.plan()
    assert second is not None and [new.num_computed_tokens for new in second.new_rows] == [0]
    harness.commit()
    harness.add("c", tokens(40))
    third = harness.plan()
    assert third is not None and [new.num_computed_tokens for new in third.new_rows] == [39]
    harness.finish_all()


def test_attention_hits_without_a_state_start_from_nothing() -> None:
    """Another engine took the blocks and started the recurrence from "has initial state"."""
    harness = Harness(kinds=FULL_AND_STATE, num_state_slots=2)
    harness.add("a", tokens(40, 1), max_tokens=4)
    harness.run()
    for seed in (2, 3):
        harness.add(f"evicts {seed}", tokens(40, seed), max_tokens=4)
        harness.run()
    assert harness.memory.cache is not None
    assert harness.memory.cache.match("0/", harness_keys(harness, "a"), 39).matched_tokens == 40  # the blocks are there
    harness.add("again", tokens(40, 1), max_tokens=4)
    plan = harness.plan()
    assert plan is not None and plan.num_computed_tokens.tolist() == [0] and len(plan.state_copies) == 0
    harness.finish_all()
    assert harness.hit("again") == 0


def harness_keys(harness: Harness, request_id: str) -> NDArray[np.int64]:
    return harness.requests[request_id].prompt_token_ids.astype(np.int64)


@WITH_STATE
def test_a_hit_on_the_whole_prompt_does_not_apply_the_last_token_twice(kinds: Kinds) -> None:
    harness = Harness(kinds=kinds)
    for name in ("first", "second"):
        harness.add(name, tokens(48), max_tokens=8)
        harness.finish_all()
    assert harness.hit("second") == 47  # one token is left to sample from
    assert harness.outputs["first"] == harness.outputs["second"]


@WITH_STATE
def test_rejected_drafts_do_not_advance_the_state(kinds: Kinds) -> None:
    """Every third proposal is wrong, and in some steps none is right."""
    harness = Harness(config=SchedulerConfig(num_draft_tokens=3), kinds=kinds)
    harness.add("a", tokens(30), max_tokens=40, stop_token_ids=())
    steps = 0
    while "a" not in harness.finished:
        harness.step()
        steps += 1
    assert steps < 40, "some drafts were accepted"
    assert harness.runner.proposals > 40, "some were rejected"
    harness.finish_all()
    harness.add("next turn", tokens(30) + harness.outputs["a"] + [5, 6], max_tokens=4)
    harness.finish_all()
    assert harness.hit("next turn") >= 29


@WITH_STATE
def test_a_retraction_keeps_the_state_with_its_blocks(kinds: Kinds) -> None:
    """Nothing is computed twice when the retracted request comes back at once."""
    harness = Harness(config=SchedulerConfig(force_retraction_every=5), kinds=kinds)
    for seed, name in enumerate("ab"):
        harness.add(name, tokens(30, seed), max_tokens=30, stop_token_ids=())
    harness.finish_all()
    stats = harness.scheduler.stats()
    assert stats.retractions >= 3 and stats.recomputed_tokens == 0


@pytest.mark.parametrize("kinds", MIXTURES.values(), ids=MIXTURES)
def test_nothing_of_the_former_owner_is_read(kinds: Kinds) -> None:
    """Whatever a finished request leaves in blocks and slots, here: garbage, the next owner writes before it reads."""
    harness = Harness(
        config=SchedulerConfig(max_num_batched_tokens=7), kinds=kinds, enable_prefix_caching=False,
        num_rows=1, num_state_slots=1, num_full_blocks=8, num_window_blocks=8, block_size=4, max_model_len=32,
    )  # fmt: skip
    for seed in range(4):
        harness.add(f"{seed}", tokens(20, seed), max_tokens=8)
        harness.finish_all()
        harness.runner.full[:] = harness.runner.window[:] = POISON
        harness.runner.states = {0: (POISON, POISON)}
