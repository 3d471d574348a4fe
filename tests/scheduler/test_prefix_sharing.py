"""What requests take from each other: siblings in one batch, shared system prompts, conversations.

Hits are asserted to the token, for every layer mixture. "Second sighting" is the point: the first request that could
hit does, also on models with recurrent state.
"""

from typing import Any

import pytest

from hybrid.adapters.adapter import Adapter
from hybrid.pools.sizing import Kinds
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import ImageInput
from tests.scheduler.harness import MIXTURES, Harness, tokens

EVERY_MIXTURE = pytest.mark.parametrize("kinds", MIXTURES.values(), ids=MIXTURES)
SYSTEM = tokens(50, 1)


@EVERY_MIXTURE
def test_siblings_wait_for_the_first_and_then_hit(kinds: Kinds) -> None:
    harness = Harness(kinds=kinds)
    for seed in range(4):
        harness.add(f"{seed}", SYSTEM + tokens(10, 20 + seed), max_tokens=4)
    plan = harness.plan()
    assert plan is not None
    assert harness.scheduled(plan) == {"0": 60}
    reason = "request '1' waits for request '0' to compute the prefix that both share"
    assert harness.scheduler.explain("1") == reason
    harness.commit()
    assert harness.step() | {"0": 1} == {"0": 1, "1": 10, "2": 10, "3": 10}
    harness.finish_all()
    assert [harness.hit(f"{seed}") for seed in range(4)] == [0, 50, 50, 50]


@EVERY_MIXTURE
def test_siblings_of_a_chunked_prefill_go_as_soon_as_their_point_is_there(kinds: Kinds) -> None:
    """The first takes whole steps for itself, and another is in flight when its point is published."""
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=40, max_plans_in_flight=2), kinds=kinds)
    harness.add("first", SYSTEM + tokens(100, 20), max_tokens=4)
    harness.add("sibling", SYSTEM + tokens(10, 21), max_tokens=4)
    harness.finish_all()
    assert (harness.hit("first"), harness.hit("sibling")) == (0, 50)


@EVERY_MIXTURE
def test_equal_prompts_share_all_but_the_last_token(kinds: Kinds) -> None:
    harness = Harness(kinds=kinds)
    for name in "abc":
        harness.add(name, SYSTEM, max_tokens=4)
    harness.finish_all()
    assert [harness.hit(name) for name in "abc"] == [0, 49, 49]


@pytest.mark.parametrize(
    ("more", "min_shared_tokens"),
    [
        ({"cache_salt": "other"}, 16),
        ({"adapter": Adapter("x", 1, 8)}, 16),
        ({"enable_prefix_caching": False}, 16),
        ({}, 51),
    ],
    ids=["salt", "adapter", "not cached", "too short"],
)
def test_nobody_waits_for_what_it_could_not_use(more: dict[str, Any], min_shared_tokens: int) -> None:
    harness = Harness(config=SchedulerConfig(min_shared_tokens=min_shared_tokens))
    harness.add("first", SYSTEM + tokens(10, 20), max_tokens=4)
    harness.add("other", SYSTEM + tokens(10, 21), max_tokens=4, **more)
    assert harness.step() == {"first": 60, "other": 60}
    harness.finish_all()
    assert harness.hit("other") == 0


@EVERY_MIXTURE
def test_a_shared_system_prompt_hits_on_its_second_sighting(kinds: Kinds) -> None:
    """The chat template says where messages end; whole blocks play no part (50 is no multiple of 16)."""
    harness = Harness(kinds=kinds)
    for serial in range(3):
        harness.add(f"{serial}", SYSTEM + tokens(30, 20 + serial), max_tokens=4, resume_hints=(50,))
        harness.finish_all()
    assert [harness.hit(f"{serial}") for serial in range(3)] == [0, 50, 50]
    assert harness.scheduler.stats().hit_tokens == 100 and harness.scheduler.stats().prompt_tokens == 240


@EVERY_MIXTURE
def test_without_hints_the_point_of_divergence_is_remembered(kinds: Kinds) -> None:
    """Full attention resumes anywhere; a window or state must have been kept there: by the second, for the third."""
    harness = Harness(kinds=kinds)
    for serial in range(3):
        harness.add(f"{serial}", SYSTEM + tokens(60, 20 + serial), max_tokens=4)
        harness.finish_all()
    second = 50 if not kinds.window and not kinds.state else 0
    assert [harness.hit(f"{serial}") for serial in range(3)] == [0, second, 50]


@EVERY_MIXTURE
@pytest.mark.parametrize("plans", [1, 2, 3])
def test_the_next_turn_of_a_conversation_resumes_at_the_end_of_the_last(kinds: Kinds, plans: int) -> None:
    """All that was computed: the last token of an answer was sampled, but never fed in."""
    harness = Harness(config=SchedulerConfig(max_plans_in_flight=plans), kinds=kinds)
    conversation, hits = SYSTEM + tokens(20, 5), []
    for turn in range(4):
        name = f"turn {turn}"
        harness.add(name, conversation, max_tokens=7, stop_token_ids=())
        harness.finish_all()
        hits.append(harness.hit(name))
        conversation = conversation + harness.outputs[name] + tokens(9, 30 + turn)
    assert hits == [0, *(70 + 7 - 1 + 16 * turn for turn in range(3))]


@EVERY_MIXTURE
def test_other_requests_neither_give_nor_take(kinds: Kinds) -> None:
    harness = Harness(kinds=kinds)
    for name, caching, hit in (("a", False, 0), ("b", True, 0), ("c", False, 0), ("d", True, 49)):
        harness.add(name, SYSTEM, max_tokens=4, enable_prefix_caching=caching)
        harness.finish_all()
        assert harness.hit(name) == hit


@EVERY_MIXTURE
def test_images_are_shared_by_content(kinds: Kinds) -> None:
    """The placeholders are the same tokens; another picture parts at its first, the same one is hit behind it."""
    harness = Harness(kinds=kinds)
    prompt = tokens(20, 1) + [7] * 12 + tokens(20, 2)
    for name, picture, hit in (("a", "cat", 0), ("b", "cat", 51), ("c", "dog", 20), ("d", "dog", 51)):
        harness.add(name, prompt, max_tokens=4, images=(ImageInput(picture, 20, 12),), resume_hints=(20,))
        harness.finish_all()
        assert harness.hit(name) == hit


@EVERY_MIXTURE
def test_the_number_of_resume_points_per_prompt_is_bounded(kinds: Kinds) -> None:
    """The first and the last are kept."""
    harness = Harness(config=SchedulerConfig(max_snapshots_per_prompt=3), kinds=kinds)
    prompt = tokens(100, 1)
    harness.add("first", prompt, max_tokens=1, resume_hints=tuple(range(10, 100, 10)))
    plan = harness.plan()
    assert plan is not None
    harness.commit()
    if kinds.state:
        assert [snapshot.position for snapshot in plan.snapshots] == [10, 90, 99]
    harness.finish_all()
    for name, length, hit in (("short", 25, 10), ("long", 95, 90)):
        if kinds.state:
            harness.add(name, prompt[:length] + tokens(9, 7), max_tokens=1)
            harness.finish_all()
            assert harness.hit(name) == hit


def test_a_prompt_and_the_counters_know_what_was_cached() -> None:
    harness = Harness()
    harness.add("a", SYSTEM, max_tokens=4)
    harness.finish_all()
    harness.add("b", SYSTEM, max_tokens=4, stop_token_ids=())
    assert harness.scheduler.num_cached_tokens("b") == 0
    harness.step()
    assert harness.scheduler.num_cached_tokens("b") == 49
    assert harness.step() == {"b": 1}
    harness.finish_all()


def test_a_reset_forgets_resume_points_and_idle_images() -> None:
    harness = Harness(kinds=MIXTURES["full+window+state"])
    for _ in range(2):
        name = f"{len(harness.requests)}"
        harness.add(name, SYSTEM, max_tokens=4, images=(ImageInput("cat", 0, 12),))
        harness.finish_all()
        harness.scheduler.reset_prefix_cache()
        for pool in ("full attention", "sliding window", "recurrent state", "encoder"):
            assert harness.ledgers()[pool].cached == 0, pool
        assert harness.hit(name) == 0
    assert harness.runner.encoded == ["cat", "cat"]
