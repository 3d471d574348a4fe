"""Mooncake's traces: prompts share what their hash_ids say."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybrid.capacity.workload.mooncake import read_mooncake
from hybrid.capacity.workload.summary import summarize
from tests.capacity.workload.traces import MOONCAKE, common, json_lines, tokens, written

FIRST: dict[str, Any] = MOONCAKE[0]


def test_lengths_times_and_shared_blocks(tmp_path: Path) -> None:
    workload = read_mooncake(written(tmp_path, "trace.jsonl", json_lines(*MOONCAKE)))
    assert workload.times.tolist() == [0, 0, 2.5]
    assert [[segment.length for segment in arrival.prompt] for arrival in workload] == [
        [512, 512, 176],
        [512, 512],
        [512, 488],
    ]
    assert [arrival.output.length for arrival in workload] == [30, 4, 9]
    first, second, third = map(tokens, workload)
    assert (common(first, second), common(first, third), common(second, third)) == (1024, 512, 512)
    assert summarize(workload).shared_tokens == 1024 + 512
    assert all(arrival.hints == () for arrival in workload)


def test_equal_ids_and_a_block_that_is_cut(tmp_path: Path) -> None:
    rows = [FIRST, FIRST | {"input_length": 1100}, FIRST | {"input_length": 1536}]
    workload = read_mooncake(written(tmp_path, "trace.jsonl", json_lines(*rows)))
    first, second, third = map(tokens, workload)
    assert (common(first, second), common(first, third)) == (1100, 1200)
    assert summarize(workload).shared_tokens == 1100 + 1200


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"hash_ids": [7, 8]}, r"hash_ids must be a list of 3, .* input_length 1,200, got 2 in \[7, 8\]"),
        ({"hash_ids": [7, 8, 9, 10]}, r"hash_ids must be a list of 3, .*, got 4 in \[7, 8, 9, 10\]"),
        ({"hash_ids": "789"}, "hash_ids must be a list of 3, .*, got '789'"),
        ({"hash_ids": [7, 8, "9"]}, "hash_ids must be a whole number .*, got '9'"),
        ({"hash_ids": [7, 8, -1]}, "hash_ids must be a whole number .*, got -1"),
        ({"hash_ids": [7, 8, 2**60]}, f"hash_ids must be a whole number .*, got {2**60}"),
        ({"hash_ids": [7, 8, True]}, "hash_ids must be a whole number .*, got True"),
        ({"timestamp": -1}, "timestamp must be a number from 0 .*, got -1"),
        ({"timestamp": float("nan")}, "timestamp must be a number from 0 .*, got nan"),
        ({"timestamp": float("inf")}, "timestamp must be a number from 0 .*, got inf"),
        ({"timestamp": "0"}, "timestamp must be a number from 0 .*, got '0'"),
        ({"timestamp": 10**400}, "timestamp must be a number from 0 .*, got 1000"),
        ({"timestamp": 999}, r"the time goes back, got -0\.001 s after 0 s"),
        ({"input_length": -3}, "input_length must be a whole number .*, got -3"),
        ({"input_length": 1e12}, r"input_length must be a whole number .*, got 1000000000000\.0"),
        ({"input_length": 10**12}, "input_length must be a whole number .*, got 1000000000000$"),
        ({"output_length": None}, "output_length must be a whole number .*, got None"),
        ({"output_length": True}, "output_length must be a whole number .*, got True"),
        ({"prompt": "x"}, "unknown field 'prompt'; there are hash_ids, input_length, output_length, timestamp"),
    ],
)
def test_a_field_that_cannot_be_is_refused_with_its_line(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    path = written(tmp_path, "trace.jsonl", json_lines(FIRST, FIRST | change))
    with pytest.raises(ValueError, match=rf"trace\.jsonl, line 2: {complaint}"):
        read_mooncake(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"timestamp": 1', "no JSON object, got"),
        ("[1, 2]", r"no JSON object, got '\[1, 2\]'"),
        ("[" * 100_000, r"no JSON object, got '\[\["),
        ("7" * 5000, "no JSON object, got '777"),
        ('{"timestamp": ' + "7" * 5000 + "}", "no JSON object, got"),
        ("null", "no JSON object, got 'null'"),
        ("{}", "hash_ids is missing"),
        (json.dumps({name: value for name, value in FIRST.items() if name != "output_length"}), "output_length is m"),
    ],
)
def test_a_line_that_is_no_request_is_refused(tmp_path: Path, line: str, complaint: str) -> None:
    path = written(tmp_path, "trace.jsonl", "\n" + json_lines(FIRST) + line + "\n")
    with pytest.raises(ValueError, match=rf"trace\.jsonl, line 3: {complaint}"):
        read_mooncake(path)


def test_no_lines_are_no_requests(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trace\.jsonl has no requests"):
        read_mooncake(written(tmp_path, "trace.jsonl", "\n"))
