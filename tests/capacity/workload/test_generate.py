"""Drawn workloads: the seed decides everything, and the figures are those asked for."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.capacity.workload.parse import Surroundings, parse_workload
from hybrid.capacity.workload.summary import summarize
from tests.capacity.workload.traces import common, tokens


@pytest.mark.parametrize("text", ["poisson", "bursts:cv=2", "chat:turns=uniform:1-5,think=3,system=50"])
def test_the_seed_decides(text: str) -> None:
    given_: dict[str, Any] = {"context": "exponential:80", "adapters": 5, "num_requests": 200, "priorities": (0, 1)}
    first, again, other = (parse_workload(text, Surroundings(**given_, seed=seed)) for seed in (4, 4, 5))
    assert list(first) == list(again)
    assert first.times.tolist() != other.times.tolist()
    assert first.prompt_lengths.tolist() != other.prompt_lengths.tolist()
    assert first.adapter.tolist() != other.adapter.tolist()


@pytest.mark.parametrize(("text", "cv"), [("steady", 0), ("poisson", 1), ("bursts", 3), ("bursts:cv=2", 2)])
def test_gaps_vary_as_they_should_at_the_rate_asked_for(text: str, cv: float) -> None:
    workload = parse_workload(text, Surroundings(rate=20, num_requests=40_000))
    gaps = np.diff(workload.times)
    assert workload.mean_rate == pytest.approx(20) and gaps.mean() == pytest.approx(0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_lengths_do_not_change_the_times() -> None:
    short, long = (parse_workload("poisson", Surroundings(context=text)) for text in ("10", "exponential:500"))
    assert short.times.tolist() == long.times.tolist()
    assert short.output_lengths.tolist() == long.output_lengths.tolist()


def test_a_shared_prefix_is_part_of_the_context() -> None:
    workload = parse_workload("steady", Surroundings(context="uniform:90-300", shared_prefix=100, num_requests=500))
    lengths = workload.prompt_lengths
    assert lengths.min() == 101 and lengths.max() == 300  # at least one token of its own
    assert common(tokens(workload[0]), tokens(workload[1])) == 100
    assert all(arrival.hints == (100,) for arrival in workload)
    assert summarize(workload).shared_tokens == 499 * 100


@given(st.integers(1, 30), st.integers(0, 3), st.integers(0, 20), st.integers(1, 30))
def test_a_later_turn_goes_on_from_the_earlier_prompt_and_answer(
    turns: int, images: int, system: int, count: int
) -> None:
    workload = parse_workload(
        f"chat:turns=uniform:1-{turns},system={system}",
        Surroundings(context="uniform:1-30", images=images, image_tokens=7, num_requests=count),
    )
    for index, arrival in enumerate(workload):
        assert arrival.prompt_length == workload.prompt_lengths[index]
        assert len(arrival.images) == images
        assert list(arrival.hints) == sorted({hint for hint in arrival.hints if 0 < hint < arrival.prompt_length})
        for image in arrival.images:
            assert image.num_tokens == 7 and system <= image.offset < arrival.prompt_length
        if arrival.after is not None:
            before = workload[arrival.after]
            assert arrival.prompt[:-1] == (*before.prompt, before.output)
            assert set(before.hints) < set(arrival.hints)


def test_a_chat() -> None:
    workload = parse_workload(
        "chat:turns=4,system=1k,think=10", Surroundings(context="100", output="50", rate=8, num_requests=4000)
    )
    summary = summarize(workload)
    assert (summary.requests, summary.sessions) == (4000, 1000)
    assert np.diff(workload.times[::4]).mean() == pytest.approx(4 / 8)
    assert [arrival.prompt_length for arrival in workload[:5]] == [1124, 1274, 1424, 1574, 1124]
    thinking = workload.times[workload.after >= 0]
    assert thinking.mean() == pytest.approx(10, rel=0.06) and thinking.std() == pytest.approx(10, rel=0.06)
    assert summary.shared_tokens == 999 * 1024 + 1000 * (1174 + 1324 + 1474)


def test_adapters_by_zipf_stay_with_their_session_and_ranks_repeat() -> None:
    workload = parse_workload(
        "chat:turns=2", Surroundings(adapters=4, ranks=(8, 64), zipf=2, num_requests=20_000, seed=3)
    )
    assert workload.ranks == (8, 64, 8, 64) and len(set(workload.adapters)) == 4
    assert workload.adapter[0::2].tolist() == workload.adapter[1::2].tolist()
    shares = np.bincount(workload.adapter) / len(workload)
    weights = np.array([1, 1 / 4, 1 / 9, 1 / 16])
    assert shares == pytest.approx(weights / weights.sum(), abs=0.02)
    assert {arrival.rank for arrival in workload[:100]} == {8, 64}


def test_a_zipf_of_zero_is_even() -> None:
    workload = parse_workload("poisson", Surroundings(adapters=5, zipf=0, num_requests=20_000))
    assert np.bincount(workload.adapter) / 20_000 == pytest.approx(np.full(5, 0.2), abs=0.02)


def test_priorities() -> None:
    workload = parse_workload("chat:turns=2", Surroundings(priorities=(0, 0, 5), num_requests=20_000))
    assert workload.priorities[0::2].tolist() == workload.priorities[1::2].tolist()
    assert np.bincount(workload.priorities) / 20_000 == pytest.approx([2 / 3, 0, 0, 0, 0, 1 / 3], abs=0.02)


def test_images_are_all_different() -> None:
    workload = parse_workload("poisson", Surroundings(images=2, image_tokens=100, shared_prefix=10, num_requests=50))
    assert [image.offset for image in workload[3].images] == [10, 110]
    assert workload[3].hints == (10,)  # an image ends no message
    assert len({image.key for arrival in workload for image in arrival.images}) == 100
    assert summarize(workload).image_tokens == 10_000
