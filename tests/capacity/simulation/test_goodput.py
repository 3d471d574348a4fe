"""The search for the highest rate that attains the targets, and what a simulation is summed up to."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hybrid.capacity.simulation.goodput import RESOLUTION, parse_rates, search
from hybrid.capacity.simulation.simulation import Conditions, simulate
from hybrid.capacity.simulation.summary import STEP, Summary, spread, summarise
from hybrid.capacity.simulation.targets import Targets

from .engines import Linear, engine, poisson, workload

SOME = summarise(simulate(engine(), workload([0.0], 5, 3)), 1.0, Targets(ttft=1.0))


def up_to(limit: float, asked: list[float]) -> Callable[[float], Summary]:
    """An engine that meets its targets at rates up to `limit`; `asked` hears which rates were tried."""

    def run(rate: float) -> Summary:
        asked.append(rate)
        return replace(SOME, rate=rate, attainment=1.0 if rate <= limit else 0.5)

    return run


@pytest.mark.parametrize("limit", [1.0, 1.5, 7.3, 49.9])
def test_the_search_ends_close_below_the_limit(limit: float) -> None:
    asked: list[float] = []
    found = search(up_to(limit, asked), 1.0, 50.0)
    assert found.best is not None and not found.at_least
    assert limit / RESOLUTION <= found.best.rate <= limit
    assert len(asked) == len(set(asked)) <= 2 + math.ceil(math.log2(math.log(50) / math.log(RESOLUTION)))
    assert [summary.rate for summary in found.curve] == sorted(asked)


def test_a_range_that_is_too_low_or_too_high() -> None:
    asked: list[float] = []
    all_of_it = search(up_to(100.0, asked), 1.0, 50.0)
    assert all_of_it.best is not None and all_of_it.best.rate == 50.0 and all_of_it.at_least
    assert asked == [1.0, 50.0]
    nothing = search(up_to(0.5, asked), 1.0, 50.0)
    assert nothing.best is None and [summary.rate for summary in nothing.curve] == [1.0]
    one = search(up_to(10.0, asked), 8.0, 8.0)
    assert one.best is not None and one.best.rate == 8.0


def test_goodput_is_what_one_server_can_bear() -> None:
    """One row, a second a request: with a TTFT of 3 s, at most two may be ahead. Steady arrivals, so up to the rate at
    which the queue starts to grow nobody waits, and beyond it the wait grows with every request."""
    traffic = workload(np.arange(400.0), 8, 1)
    targets = Targets(ttft=3.0)

    def run(rate: float) -> Summary:
        conditions = Conditions(targets=targets)
        return summarise(simulate(engine(Linear(1.0), num_rows=1), traffic.scaled(rate), conditions), rate, targets)

    found = search(run, 0.5, 4.0)
    assert found.best is not None
    assert found.best.rate == pytest.approx(1.0, rel=RESOLUTION - 1)
    attained = [summary.attained for summary in found.curve]
    assert attained == sorted(attained, reverse=True)
    attainments = [summary.attainment or 0.0 for summary in found.curve]
    assert attainments == sorted(attainments, reverse=True)


def test_rates() -> None:
    assert parse_rates("1..50") == (1.0, 50.0)
    assert parse_rates(" 0.5 ") == (0.5, 0.5)
    for text in ("0", "0..5", "5..1", "-1", "1..", "..5", "1...5", "fast", "1,5", "1e3"):
        with pytest.raises(ValueError, match=r"rate must be requests per second such as 8, .*got"):
            parse_rates(text)


def test_percentiles() -> None:
    told = spread(np.append(np.arange(101.0), np.nan))
    assert (told.mean, told.p50, told.p90, told.p95, told.p99, told.max) == (50.0, 50.0, 90.0, 95.0, 99.0, 100.0)
    assert spread(np.array([np.nan])).mean is None


def test_a_summary_counts_what_was_sent() -> None:
    """Steps of 0.1 s, two rows; a request of 4,200 tokens can never run."""
    model = engine(Linear(0.1), num_rows=2)
    traffic = workload(poisson(50, 3.0), [4200] + 49 * [32], 8)
    told = summarise(simulate(model, traffic), 3.0, Targets(ttft=0.5))
    assert (told.requests, told.completed, told.refused) == (50, 49, 1)
    assert told.attainment is not None and 0 < told.attainment < 0.98 and not told.attained
    assert told.output_tokens_per_second == pytest.approx(49 * 8 / told.seconds)
    assert told.total_tokens_per_second == pytest.approx(49 * (8 + 32) / told.seconds)
    assert told.steps * told.step_seconds == pytest.approx(told.busy * told.seconds)
    assert told.step_seconds == pytest.approx(0.1)
    assert told.batch == pytest.approx(49 * 8 / told.steps)
    assert set(told.waiting_for) == {STEP, "request row"} and sum(told.waiting_for.values()) == pytest.approx(1)
    assert told.occupancy["request row"].max == 1.0
    assert "4200 tokens" in told.error and told.stopped == ""
