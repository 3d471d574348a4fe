"""A step fails as a whole; only the request that breaks it may end for that."""

import pytest

from hybrid.scheduler.config import SchedulerConfig
from hybrid.scheduler.plan import StepPlan
from tests.scheduler.harness import Harness
from tests.scheduler.shadow import expected_output


def run_with_culprit(harness: Harness, breaks: int, max_steps: int = 2000) -> int:
    """Every plan that computes token `breaks` of request "bad" fails. Returns the number of failed steps."""
    failures = 0

    def touches(plan: StepPlan) -> bool:
        for row, start, count in zip(
            plan.rows.tolist(), plan.num_computed_tokens.tolist(), plan.num_scheduled_tokens.tolist(), strict=True
        ):
            if harness.runner.names.get(row) == "bad" and start <= breaks < start + count:
                return True
        return False

    for _ in range(max_steps):
        plan = harness.plan()
        if plan is None:
            assert not harness.results
            return failures
        if touches(plan):
            failures += 1
            harness.results.clear()
            harness.scheduler.fail(plan.step_id, "kernel fault")
            harness.scheduler.check()
            harness.collect()
        else:
            harness.commit()
    raise AssertionError("not done")


@pytest.mark.parametrize("breaks", [0, 3, 25])
def test_only_the_request_that_breaks_its_steps_ends(breaks: int) -> None:
    harness = Harness(config=SchedulerConfig(max_num_batched_tokens=64, max_step_failures=2))
    prompts = {f"good{i}": [1 + i, 2, 3, 4 + i] for i in range(5)}
    for name, prompt in prompts.items():
        harness.add(name, prompt, max_tokens=30, stop_token_ids=())
    harness.add("bad", [9, 8, 7, 6, 5], max_tokens=30, stop_token_ids=())
    failures = run_with_culprit(harness, breaks)
    assert harness.finished["bad"].reason == "error"
    assert harness.finished["bad"].error == "kernel fault"
    for name, prompt in prompts.items():
        assert harness.finished[name].reason == "length"
        assert harness.outputs[name] == expected_output(prompt, 30, stop=())
    assert failures == 3  # once to raise suspicion, twice to be to blame
    harness.assert_idle()


def test_a_named_culprit_ends_at_once() -> None:
    harness = Harness()
    harness.add("good", [1, 2, 3], max_tokens=4, stop_token_ids=())
    harness.add("bad", [4, 5, 6], max_tokens=4, stop_token_ids=())
    plan = harness.plan()
    assert plan is not None
    harness.results.clear()
    harness.scheduler.fail(plan.step_id, "logits are not finite", blamed=("bad",))
    harness.run()
    assert harness.finished["bad"].reason == "error"
    assert harness.outputs["good"] == expected_output([1, 2, 3], 4, stop=())
