"""Soak: random operations over many random engines, all invariants after each.

SOAK_OPERATIONS says how many (`make soak`: 200,000); without it a few thousand, so that a test run stays quick.
"""

import os
import random
from contextlib import nullcontext

import pytest
from tqdm import tqdm

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
