"""Who is retracted, what it keeps, and the estimate that makes retractions rare."""

import numpy as np
import pytest

from hybrid.pools.rows import RowTable
from hybrid.pools.sizing import Kinds
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.reservation import MAX_RATIO, MIN_RATIO, OutputReservation
from tests.scheduler.harness import MIXTURES, Harness, tokens


def crowded(priorities: dict[str, int]) -> Harness:
    """All are admitted, each then needs more blocks than there are: 4 tokens become 28, in blocks of 4."""
    harness = Harness(
        config=SchedulerConfig(initial_output_ratio=0.0), block_size=4, num_full_blocks=3 * len(priorities)
    )
    for seed, (name, priority) in enumerate(priorities.items()):
        harness.add(name, tokens(4, seed), max_tokens=24, priority=priority, stop_token_ids=())
    while not harness.scheduler.stats().retractions:
        harness.step()
    return harness


def waiting(harness: Harness) -> list[str]:
    return [name for name in harness.requests if "waits" in harness.scheduler.explain(name)]


def test_the_latest_admitted_gives_way() -> None:
    harness = crowded({"a": 0, "b": 0, "c": 0})
    assert waiting(harness) == ["c"]
    harness.finish_all()


def test_the_least_urgent_gives_way_first() -> None:
    harness = crowded({"a": 5, "b": 9, "c": 9, "d": 0})
    assert waiting(harness) == ["c"]
    harness.finish_all()


def test_a_retracted_request_keeps_its_place_in_the_queue() -> None:
    harness = crowded({"a": 0, "b": 0, "c": 0})
    harness.add("newcomer", tokens(4, 9), max_tokens=4, stop_token_ids=())
    entered: list[str] = []
    while harness.scheduler.num_unfinished:
        plan = harness.plan()
        assert plan is not None
        entered += [new.request_id for new in plan.new_rows]
        harness.commit()
    assert entered.index("c") < entered.index("newcomer")
    harness.finish_all()


@pytest.mark.parametrize("name", ["full", "full+window", "full+state", "full+window+state"])
def test_what_was_computed_is_resumed_while_it_is_remembered(name: str) -> None:
    """The victim's blocks are evictable like any others; those that nobody needed are hit."""
    kinds: Kinds = MIXTURES[name]
    harness = Harness(config=SchedulerConfig(force_retraction_every=4), kinds=kinds)
    for seed in range(3):
        harness.add(f"{seed}", tokens(30, seed), max_tokens=20, stop_token_ids=())
    harness.finish_all()
    stats = harness.scheduler.stats()
    assert stats.retractions > 3 and stats.recomputed_tokens == 0


def test_what_was_forgotten_is_computed_again_and_counted() -> None:
    harness = crowded({"a": 0, "b": 0, "c": 0})
    harness.scheduler.reset_prefix_cache()
    harness.finish_all()
    assert harness.scheduler.stats().recomputed_tokens > 0


def test_retractions_end() -> None:
    """As many as there are requests, not as many as there are steps."""
    harness = crowded({f"{serial}": 0 for serial in range(6)})
    harness.finish_all()
    assert harness.scheduler.stats().retractions <= 12


def test_the_estimate_stays_within_its_bounds() -> None:
    reservation = OutputReservation(0.0)
    assert reservation.ratio == MIN_RATIO
    for _ in range(100):
        reservation.retracted()
    assert reservation.ratio == MAX_RATIO
    for _ in range(1000):
        reservation.finished(0, 100)
    assert reservation.ratio == MIN_RATIO
    for _ in range(1000):
        reservation.finished(500, 100)
    assert reservation.ratio == MAX_RATIO


def test_the_estimate_follows_what_requests_use() -> None:
    reservation = OutputReservation(0.5)
    for _ in range(200):
        reservation.finished(30, 100)
    assert abs(reservation.ratio - 0.3) < 0.01
    before = reservation.ratio
    reservation.retracted()
    assert reservation.ratio > before


def test_expected_lengths_and_blocks() -> None:
    """Half of 100 permitted tokens: 50 more; 60 tokens are 15 blocks of 4, of which 3 are there."""
    reservation = OutputReservation(0.5)
    assert [reservation.expected_tokens(10, 110), reservation.expected_tokens(10, 10)] == [60, 10]
    table = RowTable(num_rows=3, max_model_len=200, block_size=4)
    table.num_tokens[:2], table.max_total_tokens[:2], table.num_blocks[:2] = (10, 20), (110, 20), (3, 9)
    assert reservation.future_blocks(table, np.array([0, 1])) == 12
