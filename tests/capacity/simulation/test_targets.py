"""What users write as --slo, and which requests meet it."""

import numpy as np
import pytest

from hybrid.capacity.simulation.records import Fate
from hybrid.capacity.simulation.simulation import Conditions, simulate
from hybrid.capacity.simulation.targets import Targets, parse_seconds, parse_targets

from .engines import Linear, engine, workload


def test_targets_are_seconds() -> None:
    assert parse_targets("ttft=2s, itl=50ms,e2e=1.5m") == Targets(ttft=2.0, itl=0.05, e2e=90.0)
    assert parse_targets("tpot=0.25") == Targets(tpot=0.25)
    assert str(Targets(ttft=2.0, itl=0.05)) == "ttft 2 s, itl 0.05 s"
    assert Targets(e2e=1.0) and not Targets()


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=", "ttft=fast", "ttft=0s", "ttft=-1s", "ttft=1s,ttft=2s", "speed=1s", "ttft=1d", "itl=nan"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="slo"):
        parse_targets(text)
    with pytest.raises(ValueError, match=r"duration must be a positive time such as 50ms, 2s or 10m, got 'soon'"):
        parse_seconds("duration", "soon")


def test_a_request_meets_all_targets_or_misses() -> None:
    """One row, steps of 1 s, 3 tokens each: first tokens after 1, 3 and 5 s."""
    outcome = simulate(engine(Linear(1.0), num_rows=1), workload([0.0, 1.0, 2.0], 5, 3))
    records = outcome.records
    assert records.ttft.tolist() == [1.0, 3.0, 5.0]
    assert records.e2e.tolist() == [3.0, 5.0, 7.0]
    assert records.tpot.tolist() == records.itl_p95.tolist() == [1.0, 1.0, 1.0]

    def met(text: str) -> list[bool]:
        met: list[bool] = parse_targets(text).met(records).tolist()
        return met

    assert met("ttft=3s") == [True, True, False]
    assert met("ttft=1s,e2e=7s") == [True, False, False]
    assert met("itl=1s,tpot=1s") == [True, True, True]
    assert met("itl=999ms") == [False, False, False]


def test_an_answer_of_one_token_has_no_gaps() -> None:
    records = simulate(engine(Linear(1.0)), workload([0.0], 5, 1)).records
    assert np.isnan(records.tpot[0]) and np.isnan(records.itl_p95[0])
    assert Targets(itl=0.001, tpot=0.001).met(records).tolist() == [True]


def test_one_long_gap_in_twenty_is_within_itl_and_two_are_not() -> None:
    """A request decodes alone, at 1 s a token, while prompts of 100 tokens at 0.1 s a token come: one, then another."""
    step_time = Linear(0.9, 0.1)
    first = simulate(engine(step_time), workload([0.0, 5.0], [1, 100], [21, 1])).records
    assert first.itl_p95[0] == pytest.approx(1.0, rel=1e-6) and first.gaps.max() > 10
    assert first.tpot[0] > 1.4
    both = simulate(engine(step_time), workload([0.0, 5.0, 20.0], [1, 100, 100], [21, 1, 1])).records
    assert both.itl_p95[0] > 10


def test_errors_refused_and_unfinished_requests_have_missed() -> None:
    model = engine(Linear(1.0), num_rows=1, max_model_len=100)
    outcome = simulate(model, workload(np.zeros(40), [200] + 39 * [10], 10), Conditions(targets=Targets(ttft=15.0)))
    fates = np.bincount(outcome.records.fate, minlength=len(Fate)).tolist()
    assert fates[Fate.REFUSED] == 1 and fates[Fate.UNFINISHED] > 30 and fates[Fate.COMPLETED] >= 2
    targets = Targets(ttft=15.0)
    assert targets.met(outcome.records).sum() == 2
    missed = targets.missed(outcome.records, outcome.totals.time)
    assert missed.sum() == 38
