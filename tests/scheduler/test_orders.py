"""The six orders of the waiting queue, ageing, and the fall-back on long queues: who is admitted in which order."""

from typing import Any

from hybrid.adapters.adapter import Adapter
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import Gate, GateStatus
from tests.scheduler.harness import Harness, tokens


def admitted(harness: Harness) -> list[str]:
    """Who enters with the next plan, in order."""
    plan = harness.plan()
    assert plan is not None
    harness.commit()
    return [new.request_id for new in plan.new_rows]


def engine(policy: Any, **config: Any) -> Harness:
    return Harness(config=SchedulerConfig(scheduling_policy=policy, min_shared_tokens=1000, **config))


def add(harness: Harness, *names: str, **more: Any) -> None:
    for name in names:
        harness.add(name, tokens(20, len(harness.requests)), **more)


def test_fcfs_is_arrival() -> None:
    harness = engine("fcfs")
    add(harness, "c", "a", "b", priority=1)
    add(harness, "urgent", priority=0)
    assert admitted(harness) == ["c", "a", "b", "urgent"]


def test_priority_takes_the_lower_number_first() -> None:
    harness = engine("priority")
    for name, priority in (("c", 2), ("a", 0), ("d", 2), ("b", 1), ("first", -1)):
        add(harness, name, priority=priority)
    assert admitted(harness) == ["first", "a", "b", "c", "d"]


def test_lof_takes_the_longest_output_first() -> None:
    harness = engine("lof")
    for max_tokens in (5, 50, 20, 50):
        add(harness, f"{len(harness.requests)}: {max_tokens}", max_tokens=max_tokens)
    assert admitted(harness) == ["1: 50", "3: 50", "2: 20", "0: 5"]


def with_cached(policy: Any, **config: Any) -> Harness:
    """An engine whose cache knows two prompts of 64 tokens, seeds 1 and 2."""
    harness = engine(policy, **config)
    for seed in (1, 2):
        harness.add(f"cached {seed}", tokens(64, seed), max_tokens=1)
    harness.run()
    return harness


def add_continuation(harness: Harness, name: str, seed: int, length: int) -> None:
    harness.add(name, tokens(64, seed)[:length] + tokens(10, 20 + len(harness.requests)))


def test_lpm_takes_the_longest_cached_prefix_first() -> None:
    harness = with_cached("lpm")
    add_continuation(harness, "none", 1, 0)
    add_continuation(harness, "half", 1, 32)
    add_continuation(harness, "most", 2, 48)
    assert admitted(harness) == ["most", "half", "none"]


def test_dfs_weight_walks_the_heaviest_subtree_first() -> None:
    harness = with_cached("dfs-weight")
    add_continuation(harness, "none", 1, 0)
    for name, seed in (("1a", 1), ("2a", 2), ("2b", 2), ("1b", 1), ("2c", 2)):
        add_continuation(harness, name, seed, 48)
    assert admitted(harness) == ["2a", "2b", "2c", "1a", "1b", "none"]


def test_routing_key_follows_what_runs() -> None:
    """Adapters are the keys where a request names none."""
    harness = engine("routing-key")
    x, y = Adapter("x", 1, 8), Adapter("y", 2, 8)
    add(harness, "x running", adapter=x)
    add(harness, "y running 1", "y running 2", adapter=y)
    harness.step()
    add(harness, "base")
    add(harness, "x", adapter=x)
    add(harness, "y", adapter=y)
    add(harness, "keyed", routing_key="y")
    assert admitted(harness) == ["y", "keyed", "x", "base"]


def test_whoever_waited_too_long_goes_first() -> None:
    now = 0.0
    harness = Harness(
        config=SchedulerConfig(scheduling_policy="priority", ageing_seconds=10.0), clock=lambda: now, num_rows=1
    )
    add(harness, "running", max_tokens=40, stop_token_ids=())
    harness.step()
    add(harness, "old", priority=9)
    now = 5.0
    add(harness, "patient", priority=9)
    now = 10.5
    add(harness, "urgent", priority=0)
    order: list[str] = []
    while harness.scheduler.num_unfinished:
        order += admitted(harness)
    assert order == ["old", "urgent", "patient"]


def test_a_long_queue_falls_back_to_arrival() -> None:
    for long_queue, expected in ((3, ["most", "half", "none"]), (2, ["none", "half", "most"])):
        harness = with_cached("lpm", long_queue=long_queue)
        add_continuation(harness, "none", 1, 0)
        add_continuation(harness, "half", 1, 32)
        add_continuation(harness, "most", 2, 48)
        assert admitted(harness) == expected


def test_very_many_blocked_requests_are_polled_in_turn() -> None:
    """A sweep is bounded, so the last of 600 is looked at in the third; whoever is ready goes by arrival."""
    harness = Harness()
    ready = {"599", "300", "20"}
    for serial in range(600):

        def poll(name: str = f"{serial}") -> GateStatus:
            return GateStatus.READY if name in ready else GateStatus.PENDING

        add(harness, f"{serial}", gates=(Gate("grammar", poll),), max_tokens=1)
    assert [harness.step().keys() for _ in range(3)] == [{"20"}, {"300"}, {"599"}]
    for name in tuple(harness.requests):
        harness.abort(name)


def test_the_scan_of_the_queue_is_bounded() -> None:
    """Requests that lack only an adapter are passed, but not without end in one step."""
    harness = Harness(config=SchedulerConfig(max_scan=3), lora_units=1)
    add(harness, "x", adapter=Adapter("x", 1, 8), max_tokens=9)
    harness.step()
    for serial in range(3):
        add(harness, f"y {serial}", adapter=Adapter("y", 2, 8))
    add(harness, "plain")
    assert admitted(harness) == []
    harness.finish_all()
