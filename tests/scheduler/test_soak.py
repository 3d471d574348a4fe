"""Soak: random operations over many random engines, all invariants after each.

SOAK_OPERATIONS says how many (`make soak`: 200,000); without it a few thousand, so that a test run stays quick.
"""

import os
import random
from contextlib import nullcontext

import pytest
from tqdm import tqdm

from hybrid.scheduler.plan import StepPlan
from tests.scheduler.traffic import OPERATIONS, Traffic

LONG = "SOAK_OPERATIONS" in os.environ
NUM_OPERATIONS = int(os.environ.get("SOAK_OPERATIONS", "3000"))
FIRST_SEED = int(os.environ.get("SOAK_SEED", "0"))
OPERATIONS_PER_ENGINE = 150


def soak_one(seed: int, num_operations: int) -> str | None:
    """One engine: what was violated, if anything."""
    dice = random.Random(seed)
    operations, weights = zip(*OPERATIONS, strict=True)
    traffic = Traffic(dice.choice)
    try:
        for operation in dice.choices(operations, weights, k=num_operations):
            traffic.tick()
            operation(traffic)
        traffic.drain()
    except Exception as error:
        return f"engine {seed}: {type(error).__name__}: {error}"
    return None


def test_soak(capsys: pytest.CaptureFixture[str]) -> None:
    violations: list[str] = []
    done, seed = 0, FIRST_SEED
    with capsys.disabled() if LONG else nullcontext():
        with tqdm(total=NUM_OPERATIONS, unit="op", disable=not LONG) as progress:
            while done < NUM_OPERATIONS:
                count = min(OPERATIONS_PER_ENGINE, NUM_OPERATIONS - done)
                violation = soak_one(seed, count)
                if violation is not None:
                    violations.append(violation)
                done, seed = done + count, seed + 1
                progress.update(count)
        print(f"{done} operations on {seed - FIRST_SEED} engines, {len(violations)} violations")
    assert not violations, "\n".join(violations[:20])


def plans_of(seed: int) -> list[tuple[object, ...]]:
    """Every plan of one engine under traffic, as plain data."""
    dice = random.Random(seed)
    operations, weights = zip(*OPERATIONS, strict=True)
    traffic, plans = Traffic(dice.choice), list[tuple[object, ...]]()
    schedule = traffic.harness.scheduler.schedule

    def recorded() -> StepPlan | None:
        plan = schedule()
        if plan is not None:
            fields = (getattr(plan, name) for name in StepPlan.__dataclass_fields__)
            plans.append(tuple(repr(value) for value in fields))
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traffic.harness.scheduler, "schedule", recorded)
        for operation in dice.choices(operations, weights, k=OPERATIONS_PER_ENGINE):
            traffic.tick()
            operation(traffic)
        traffic.drain()
    return plans


@pytest.mark.parametrize("seed", range(3))
def test_same_seed_same_plans(seed: int) -> None:
    """No decision depends on wall-clock time, or on where objects lie in memory."""
    first = plans_of(seed)
    assert len(first) > 20 and plans_of(seed) == first
