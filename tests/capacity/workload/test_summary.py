"""What the figures of a workload say."""

import pytest

from hybrid.capacity.workload.parse import Surroundings, parse_workload
from hybrid.capacity.workload.summary import summarize
from tests.capacity.workload.traces import common, tokens


def test_rows() -> None:
    given = Surroundings(context="100", output="10", rate=2, num_requests=11, adapters=2, images=1, image_tokens=50)
    assert summarize(parse_workload("steady", given)).rows() == [
        ("requests", "11"),
        ("requests/s", "2"),
        ("seconds", "5.0"),
        ("prompt tokens", "mean 150.0, p50 150, p95 150, p99 150, largest 150"),
        ("output tokens", "mean 10.0, p50 10, p95 10, p99 10, largest 10"),
        ("shared prefixes", "0.0% of 1,650 prompt tokens"),
        ("adapters", "2, used by 11 requests"),
        ("images", "11, 550 tokens"),
    ]


@pytest.mark.parametrize("text", ["chat:turns=uniform:1-4,system=20", "poisson"])
def test_shared_tokens_are_those_of_the_longest_earlier_beginning(text: str) -> None:
    workload = parse_workload(text, Surroundings(context="uniform:3-30", output="uniform:1-9", num_requests=60))
    prompts = [tokens(arrival) for arrival in workload]
    beginnings: list[list[int]] = []
    expected = 0
    for arrival, prompt in zip(workload, prompts):
        answered = (
            workload.prompt_lengths[arrival.after] + workload[arrival.after].output.length
            if arrival.after is not None
            else 0
        )
        expected += max([answered, *(common(prompt, earlier) for earlier in beginnings)])
        beginnings.append(prompt)
    assert summarize(workload).shared_tokens == expected
    assert summarize(workload).shared_share == expected / sum(map(len, prompts))
