"""What docs/planning.md says of workloads holds."""

import re
from pathlib import Path

import pytest

from hybrid.capacity.workload.parse import KEYS, Surroundings, parse_lengths, parse_workload
from hybrid.capacity.workload.requests_file import FIELDS, read_requests
from tests.capacity.workload.traces import written

TEXT = (Path(__file__).parents[3] / "docs" / "planning.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("\n## Workloads\n")[2].partition("\n## ")[0]
FIRST_CELLS = re.findall(r"^\| (.*?) \|", SECTION, re.MULTILINE)
NAMES = [name for cell in FIRST_CELLS for name in re.findall(r"`([^`]+)`", cell)]
WORKLOADS = [name for name in NAMES if name.partition(":")[0] in KEYS]
LENGTHS = [name for name in NAMES if re.match(r"[0-9]|[a-z]+:[a-z0-9]", name) and name not in WORKLOADS]


@pytest.mark.parametrize("text", WORKLOADS)
def test_workloads(text: str) -> None:
    assert len(parse_workload(text, Surroundings(num_requests=12))) == 12


@pytest.mark.parametrize("text", LENGTHS)
def test_lengths(text: str) -> None:
    assert parse_lengths("context", text).text == text


def test_all_are_named() -> None:
    assert {text.partition(":")[0] for text in WORKLOADS} == set(KEYS)
    assert len(LENGTHS) == 7
    assert set(NAMES) >= FIELDS - {"think"}


def test_the_trace_is_one(tmp_path: Path) -> None:
    example = re.search(r"```json\n(.*?)```", SECTION, re.DOTALL)
    assert example is not None
    workload = read_requests(written(tmp_path, "own.jsonl", example[1]), image_tokens=256)
    assert [arrival.prompt_length for arrival in workload] == [1500, 1356, 1500 + 220 + 60]
    assert workload.after.tolist() == [-1, -1, 0]
    assert workload[2].rank == 16
