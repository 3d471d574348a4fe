"""Several plans in flight, and requests that end while plans still compute for them."""

from collections.abc import Callable
from typing import Any

import pytest

from hybrid.pools.sizing import Kinds
from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.request import Gate, GateStatus, ImageInput
from tests.scheduler.harness import FULL, HYBRID, MIXTURES, STATE, Harness, tokens
from tests.scheduler.shadow import expected_output

EVERY_MIXTURE = pytest.mark.parametrize("kinds", MIXTURES.values(), ids=MIXTURES)


def engine(plans: int = 2, kinds: Kinds = HYBRID, **config: Any) -> Harness:
    return Harness(config=SchedulerConfig(max_plans_in_flight=plans, **config), kinds=kinds)


@EVERY_MIXTURE
@pytest.mark.parametrize("plans", [2, 3])
def test_plans_run_ahead_of_results(kinds: Kinds, plans: int) -> None:
    """A decode is planned for a token that no result has named yet."""
    harness = engine(plans, kinds)
    harness.add("a", tokens(20), max_tokens=10, stop_token_ids=())
    starts: list[int] = []
    for _ in range(plans):
        plan = harness.plan()
        assert plan is not None
        starts += plan.num_computed_tokens.tolist()
    assert starts == [0, *range(20, 20 + plans - 1)]
    assert harness.plan() is None and harness.scheduler.num_in_flight == plans
    assert harness.outputs["a"] == []
    harness.finish_all()


@pytest.mark.parametrize("plans", [2, 3])
def test_a_grammar_sees_every_token_before_the_next_is_planned(plans: int) -> None:
    harness = engine(plans)
    harness.add("bound", tokens(20), max_tokens=6, stop_token_ids=(), needs_grammar=True)
    harness.add("free", tokens(20, 2), max_tokens=6, stop_token_ids=())
    table, planned = harness.memory.table, 0
    while harness.scheduler.num_unfinished or harness.results:
        while (plan := harness.plan()) is not None:
            samples = plan.rows[plan.needs_grammar & plan.samples]
            assert (table.placeholders[samples] == 1).all()
            planned += len(samples)
        harness.commit()
    assert planned == 6
    harness.finish_all()


@pytest.mark.parametrize("plans", [1, 2, 3])
def test_nobody_is_planned_beyond_its_limit(plans: int) -> None:
    """The last token is in flight: the next plan leaves the request out."""
    harness = engine(plans)
    harness.add("a", tokens(20), max_tokens=4, stop_token_ids=())
    computed = 0
    while harness.scheduler.num_unfinished or harness.results:
        while (plan := harness.plan()) is not None:
            computed += plan.num_tokens
        harness.commit()
    assert computed == 20 + 3
    harness.finish_all()


@EVERY_MIXTURE
def test_a_stopped_request_drains(kinds: Kinds) -> None:
    """Reported at once; its memory waits for the step that still computes for it, and its row has no new owner."""
    harness = engine(2, kinds)
    probe = harness.add("probe", tokens(20), max_tokens=30, stop_token_ids=())
    answer = expected_output(probe)
    harness.abort("probe")
    stop = next(token for index, token in enumerate(answer) if index >= 2 and token not in answer[:index])
    harness.add("a", tokens(20), max_tokens=30, stop_token_ids=(stop,))
    while "a" not in harness.finished:
        while harness.plan() is not None:
            pass
        harness.commit()
    assert harness.results and harness.ledgers()["request row"].held == 1
    assert harness.scheduler.num_unfinished == 0 and not harness.abort("a")
    harness.commit()
    harness.assert_idle()
    harness.add("next turn", tokens(20) + harness.outputs["a"] + [3], max_tokens=2)
    harness.finish_all()
    assert harness.hit("next turn") == 20 + len(harness.outputs["a"])  # the draining step computed the stop token too


def steps(count: int) -> Callable[[Harness], None]:
    def run(harness: Harness) -> None:
        for _ in range(count):
            harness.step()

    return run


def plans(before: int, in_flight: int) -> Callable[[Harness], None]:
    def run(harness: Harness) -> None:
        steps(before)(harness)
        for _ in range(in_flight):
            assert harness.plan() is not None

    return run


def retracted(harness: Harness) -> None:
    """It waits, with what it has generated."""
    steps(6)(harness)
    harness.plan(fails=True)
    harness.commit()
    assert "waits" in harness.scheduler.explain("a") and harness.outputs["a"]


# The prompt of 50 tokens takes three steps of 20; what is planned comes on top.
MOMENTS: dict[str, Callable[[Harness], None]] = {
    "waiting": lambda harness: None,
    "prefilling": steps(1),
    "first chunk in flight": plans(0, 1),
    "two chunks in flight": plans(0, 2),
    "last chunk and decode in flight": plans(2, 2),
    "decoding": steps(5),
    "decode in flight": plans(5, 1),
    "two decodes in flight": plans(5, 2),
    "retracted": retracted,
}


@pytest.mark.parametrize("kinds", [FULL, STATE, HYBRID], ids=["full", "state", "hybrid"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("end", ["abort", "finish"])
def test_a_request_ends_at_any_moment(kinds: Kinds, moment: str, end: str) -> None:
    """Everything is given back once; whoever else is there does not notice; a later result is dropped."""
    harness = engine(2, kinds, max_num_batched_tokens=20, max_num_encoder_tokens=30)
    image = ImageInput("picture", 15, 30)
    harness.add("a", tokens(50), max_tokens=20, images=(image,), stop_token_ids=())
    MOMENTS[moment](harness)
    harness.add("b", tokens(30, 2), max_tokens=9, stop_token_ids=())
    known = len(harness.outputs["a"])
    assert harness.abort("a") if end == "abort" else harness.finish("a")
    assert not harness.abort("a") and not harness.finish("a"), "only once"
    assert harness.finished["a"].reason == ("abort" if end == "abort" else "stop")
    harness.finish_all()
    assert len(harness.outputs["a"]) == known
    assert len(harness.outputs["b"]) == 9


def test_an_aborted_row_shows_nothing_to_its_next_owner() -> None:
    """One row, one slot: the next request may take them only after the steps in flight."""
    harness = Harness(
        config=SchedulerConfig(max_plans_in_flight=3), kinds=HYBRID, num_rows=1, num_state_slots=1,
        num_full_blocks=4, num_window_blocks=4, enable_prefix_caching=False,
    )  # fmt: skip
    harness.add("a", tokens(20), max_tokens=20, stop_token_ids=())
    harness.add("b", tokens(30, 2), max_tokens=9, stop_token_ids=())
    for _ in range(3):
        harness.plan()
    harness.abort("a")
    assert {ledger.pending for ledger in harness.ledgers().values()} == {0, 1, 2}
    assert harness.scheduler.schedule() is None
    harness.finish_all()


def test_a_gated_request_can_be_aborted() -> None:
    harness = engine()
    harness.add("a", tokens(5), gates=(Gate("grammar", lambda: GateStatus.PENDING),))
    assert harness.abort("a") and harness.scheduler.num_unfinished == 0
    harness.finish_all()


@EVERY_MIXTURE
def test_a_failed_step_is_computed_again(kinds: Kinds) -> None:
    """With chunks, decodes and first tokens in it, and a later plan in flight that built on it."""
    harness = engine(2, kinds, max_num_batched_tokens=30)
    for seed, length in enumerate((50, 10, 30)):
        harness.add(f"{seed}", tokens(length, seed), max_tokens=12, stop_token_ids=())
    for step in range(12):
        harness.plan(fails=step in (1, 6))
        if len(harness.results) == 2:
            harness.commit()
    harness.finish_all()
    assert harness.scheduler.stats().failed_steps == 2
    assert {ended.reason for ended in harness.finished.values()} == {"length"}


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_request_whose_steps_fail_too_often_ends_with_the_error(limit: int) -> None:
    harness = engine(1, FULL, max_step_failures=limit)
    harness.add("a", tokens(20), max_tokens=12, stop_token_ids=())
    for failures in range(1, limit + 1):
        harness.plan(fails=True)
        harness.commit()
        assert ("a" in harness.finished) == (failures == limit)
    assert harness.finished["a"].reason == "error" and harness.finished["a"].error == "the device is gone"
    harness.add("b", tokens(20), max_tokens=12)
    harness.finish_all()


@pytest.mark.parametrize("kinds", MIXTURES.values(), ids=MIXTURES)
def test_a_copy_that_a_failed_step_should_have_made_is_not_remembered(kinds: Kinds) -> None:
    """The prompt is resumed inside a block, the step that copies the block fails, and the original is forgotten."""
    harness = Harness(kinds=kinds, block_size=4, sliding_window=8 if kinds.window else 0)
    shared = tokens(6, 1)
    harness.add("first", shared + tokens(8, 2), max_tokens=4, resume_hints=(6,))
    harness.finish_all()
    harness.add("second", shared + tokens(9, 3), max_tokens=4)
    plan = harness.plan(fails=True)
    assert plan is not None
    assert plan.new_rows[0].num_computed_tokens == 6
    harness.scheduler.reset_prefix_cache()
    harness.commit()
    harness.finish_all()
    assert harness.outputs["second"] == expected_output(harness.requests["second"])
