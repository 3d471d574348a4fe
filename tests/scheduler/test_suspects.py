"""A step fails as a whole; only the request that breaks it may end for that."""

import pytest

from hybrid.scheduler.config import SchedulerConfig
from tests.scheduler.harness import HYBRID, Harness
from tests.scheduler.shadow import expected_output


def run_with_culprit(harness: Harness, breaks: int, max_steps: int = 2000) -> int:
    """Every plan that computes token `breaks` of request "bad" fails. Returns the number of failed steps."""
    failures = 0
    for _ in range(max_steps):
        plan = harness.scheduler.schedule()
        if plan is None:
            harness.check()
            return failures
        names = [str(harness.scheduler.memory.table.request_ids[row]) for row in plan.rows.tolist()]
        ends = (plan.num_computed_tokens + plan.num_scheduled_tokens).tolist()
        spans = zip(names, plan.num_computed_tokens.tolist(), ends, strict=True)
        fails = any(name == "bad" and start <= breaks < end for name, start, end in spans)
        failures += fails
        result = harness.runner.execute(plan, fails)
        harness.results.append((plan.step_id, None if fails else result))
        harness.commit()
    raise AssertionError("not done")


@pytest.mark.parametrize("breaks", [0, 3, 25])
def test_only_the_request_that_breaks_its_steps_ends(breaks: int) -> None:
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=64, max_step_failures=2), kinds=HYBRID)
    good = [harness.add(f"good{i}", [1 + i, 2, 3, 4 + i], max_tokens=30, stop_token_ids=()) for i in range(5)]
    harness.add("bad", [9, 8, 7, 6, 5], max_tokens=30, stop_token_ids=())
    failures = run_with_culprit(harness, breaks)
    assert harness.finished["bad"].reason == "error"
    assert harness.finished["bad"].error == "the device is gone"
    for new in good:
        assert harness.finished[new.request_id].reason == "length"
        assert harness.outputs[new.request_id] == expected_output(new)
    assert failures == 3  # once to raise suspicion, twice to be to blame
    harness.assert_idle()


def test_a_named_culprit_ends_at_once() -> None:
    harness = Harness()
    good = harness.add("good", [1, 2, 3], max_tokens=4, stop_token_ids=())
    harness.add("bad", [4, 5, 6], max_tokens=4, stop_token_ids=())
    harness.plan(fails=True)
    harness.commit(blamed=("bad",))
    harness.run()
    assert harness.finished["bad"].error == "the device is gone"
    assert harness.outputs["good"] == expected_output(good)
