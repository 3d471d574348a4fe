"""What users write for a workload."""

from pathlib import Path
from typing import Any

import pytest

from hybrid.capacity.workload.parse import Surroundings, parse_lengths, parse_workload
from tests.capacity.workload.traces import AZURE_2023, MOONCAKE, REQUESTS, json_lines, written


def test_files_by_format_or_by_name(tmp_path: Path) -> None:
    azure = written(tmp_path, "a.csv.gz", AZURE_2023)
    mooncake = written(tmp_path, "m.jsonl", json_lines(*MOONCAKE))
    own = written(tmp_path, "o.jsonl", json_lines(*REQUESTS))
    around = Surroundings(image_tokens=10)
    assert len(parse_workload(f"azure:{azure}", around)) == len(parse_workload(str(azure), around)) == 3
    assert len(parse_workload(f"mooncake:{mooncake}", around)) == 3
    assert len(parse_workload(f"requests:{own}", around)) == len(parse_workload(f" {own} ", around)) == 4


def test_a_trace_is_scaled_cut_and_given_adapters(tmp_path: Path) -> None:
    path = written(tmp_path, "trace.csv", AZURE_2023)
    given = Surroundings(rate=10, num_requests=2, adapters=3, ranks=(4,), priorities=(7,))
    workload = parse_workload(str(path), given)
    assert workload.times.tolist() == pytest.approx([0, 0.1])
    assert [(arrival.rank, arrival.priority) for arrival in workload] == [(4, 7), (4, 7)]
    assert parse_workload(str(path), Surroundings()).mean_rate == pytest.approx(0.8)


def test_a_trace_keeps_its_adapters(tmp_path: Path) -> None:
    path = str(written(tmp_path, "own.jsonl", json_lines(*REQUESTS)))
    assert parse_workload(path, Surroundings(image_tokens=5)).adapters == ("sql",)
    assert parse_workload(path, Surroundings(image_tokens=5, adapters=1)).adapters == ("sql",)


def test_a_shared_beginning_leaves_something_of_a_constant_prompt() -> None:
    with pytest.raises(ValueError, match="shared_prefix 100 leaves nothing of a context of 100 tokens"):
        parse_workload("poisson", Surroundings(context="100", shared_prefix=100))
    assert parse_workload("chat", Surroundings(context="100", shared_prefix=100)).prompt_lengths[0] == 200


def test_a_trace_of_no_name() -> None:
    with pytest.raises(ValueError, match=r"context must be such as trace:FILE, got 'trace:'"):
        parse_lengths("context", "trace:")


def test_lengths_of_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path, "trace.csv", AZURE_2023)
    workload = parse_workload("poisson", Surroundings(context=f"trace:{path}", output=f"trace:azure:{path}"))
    assert set(workload.prompt_lengths.tolist()) == {700, 1300, 1}
    assert set(workload.output_lengths.tolist()) == {12, 1, 55}
    with pytest.raises(ValueError, match=r"none\.csv cannot be read"):
        parse_lengths("context", "trace:none.csv")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "workload must be poisson, steady, .*; got ''"),
        ("trace.txt", r"workload must be poisson, .*; got 'trace\.txt'"),
        ("azure:", "workload must be poisson, .*; got 'azure:'"),
        ("azure", "workload must be poisson, .*; got 'azure'"),
        ("azure:none.csv", r"none\.csv cannot be read: No such file"),
        ("poisson:cv=2", "workload 'poisson' takes nothing, .*, got 'poisson:cv=2'"),
        ("bursts:", None),
        ("bursts:cv", "workload 'bursts' takes cv, each once as name=value, got 'bursts:cv'"),
        ("bursts:cv=2,cv=3", "workload 'bursts' takes cv, each once"),
        ("bursts:cv=x", "cv must be a number from 0 to 10, got 'x' in 'bursts:cv=x'"),
        ("bursts:cv=nan", "cv must be a number from 0 to 10, got 'nan'"),
        ("bursts:cv=-1", "cv must be a number from 0 to 10, got '-1'"),
        ("bursts:cv=1e-300", None),
        ("bursts:cv=10", None),
        ("chat:turns=0", "turns must be 1 to .*, got '0'"),
        ("chat:turns=x", "turns must be such as .*, got 'x'"),
        ("chat:system=x", "system must be a number of tokens .*, got 'x'"),
        ("chat:system=999999999k", "system must be at most 16,777,216 tokens, got '999999999k'"),
        ("chat:turns=16777216", None),
        ("chat:think=inf", "think must be a number from 0 to 1e[+]06, got 'inf'"),
        ("chat:think=0,turns=2,system=0", None),
    ],
)
def test_text(text: str, complaint: str | None) -> None:
    if complaint is None:
        assert len(parse_workload(text, Surroundings(num_requests=7))) == 7
    else:
        with pytest.raises(ValueError, match=complaint):
            parse_workload(text, Surroundings(num_requests=7))


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("shared_prefix", -1, "shared_prefix must be 0 to .*, got -1"),
        ("adapters", -1, "adapters must be 0 to .*, got -1"),
        ("seed", -1, "seed must be 0 to .*, got -1"),
        ("ranks", (8, 0), r"ranks must be 1 to 4,096, got \(8, 0\)"),
        ("images", 10**9, "images must be 0 to 1,000, got 1000000000"),
        ("ranks", (5000,), r"ranks must be 1 to 4,096, got \(5000,\)"),
        ("priorities", (0, 10**30), "priority must be a whole number from -2,147,483,647 .*, got 1000000"),
        ("ranks", (), r"ranks must be 1 to 4,096, got \(\)"),
        ("zipf", -1.0, "zipf must be an exponent from 0 to 100, got -1"),
        ("zipf", float("nan"), "zipf must be an exponent from 0 to 100, got nan"),
        ("images", 1, "images 1: the model takes none"),
    ],
)
def test_options_that_cannot_be(option: str, value: Any, complaint: str) -> None:
    given: dict[str, Any] = {option: value}
    with pytest.raises(ValueError, match=complaint):
        Surroundings(**given)
