"""A workload in columns: scaled, cut, indexed."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.capacity.workload.parse import Surroundings, parse_workload
from hybrid.capacity.workload.workload import Workload

TEXTS = st.sampled_from(["poisson", "steady", "bursts:cv=5", "chat:turns=3,system=9", "chat:turns=uniform:1-6"])


def drawn(text: str, num_requests: int = 50, seed: int = 1) -> Workload:
    return parse_workload(text, Surroundings(context="uniform:5-40", num_requests=num_requests, seed=seed))


@given(TEXTS, st.integers(2, 60), st.floats(1e-6, 1e6), st.integers(0, 9))
def test_scaling_keeps_order_count_and_shape(text: str, count: int, rate: float, seed: int) -> None:
    workload = drawn(text, count, seed)
    scaled = workload.scaled(rate)
    opening = workload.after < 0
    assert len(scaled) == count
    assert np.array_equal(scaled.times[~opening], workload.times[~opening])
    if opening.sum() > 1:
        assert scaled.mean_rate == pytest.approx(rate)
        assert scaled.times[opening] * scaled.mean_rate == pytest.approx(workload.times[opening] * workload.mean_rate)
    assert [arrival.prompt for arrival in scaled] == [arrival.prompt for arrival in workload]


@given(TEXTS, st.integers(1, 40), st.integers(1, 60))
def test_the_first_requests_are_those_of_the_whole(text: str, count: int, more: int) -> None:
    workload = drawn(text, 40)
    cut = workload.first(count)
    assert len(cut) == count and list(cut) == list(workload[:count])
    assert cut.prompt_lengths.tolist() == [arrival.prompt_length for arrival in cut]
    assert len(workload.first(40 + more)) == 40


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-320, 1e300, math.nan, math.inf, -math.inf])
def test_a_rate_of_none_is_refused(rate: float) -> None:
    complaint = f"a rate must be 1e-09 to 1e[+]09 requests per second, got {re.escape(str(rate))}"
    with pytest.raises(ValueError, match=complaint):
        drawn("poisson").scaled(rate)
    with pytest.raises(ValueError, match=complaint):
        parse_workload("poisson", Surroundings(rate=rate))


def test_no_requests_are_refused() -> None:
    for count in (0, -3):
        with pytest.raises(ValueError, match=f"the number of requests must be at least 1, got {count}"):
            drawn("poisson").first(count)
    for count in (0, -3, 10**12):
        with pytest.raises(ValueError, match=f"the number of requests must be 1 to 10,000,000, got {count}"):
            drawn("poisson", count)


def test_one_request_has_no_rate_and_several_at_once_cannot_be_stretched() -> None:
    one = drawn("poisson", 1)
    assert one.mean_rate == math.inf and one.scaled(3).times.tolist() == [0]
    workload = drawn("poisson", 3)
    at_once = Workload(
        **{name: getattr(workload, name) for name in Workload.__dataclass_fields__ if name != "times"},
        times=np.zeros(3),
    )
    with pytest.raises(ValueError, match="all requests of poisson come at once: there is no rate to change to 3"):
        at_once.scaled(3)


def test_it_is_a_sequence() -> None:
    workload = drawn("chat", 7)
    assert workload[-1] == workload[6] == list(workload)[6]
    assert workload[1:3] == (workload[1], workload[2])
    with pytest.raises(IndexError):
        workload[7]
    with pytest.raises(IndexError):
        workload[-8]


def test_an_arrival_is_made_when_it_is_asked_for() -> None:
    """72,000 requests of several turns take a few MiB."""
    workload = parse_workload("chat:turns=9,system=1k", Surroundings(num_requests=72_000))
    columns = [getattr(workload, name) for name in Workload.__dataclass_fields__]
    assert sum(column.nbytes for column in columns if isinstance(column, np.ndarray)) < 8 * 2**20
