"""Azure's traces are read as published in 2023 and 2024, and what is no such file is refused with its line."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hybrid.capacity.workload import trace_file
from hybrid.capacity.workload.azure import read_azure
from tests.capacity.workload.traces import AZURE_2023, AZURE_2024, common, tokens, written

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:00:01.5000000,700,12\n"


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_2023(tmp_path: Path, name: str) -> None:
    workload = read_azure(written(tmp_path, name, AZURE_2023))
    assert workload.times.tolist() == pytest.approx([0, 0.25, 2.5], abs=1e-6)
    assert [arrival.prompt_length for arrival in workload] == [700, 1300, 1]  # nothing is shorter than one token
    assert [arrival.output.length for arrival in workload] == [12, 1, 55]
    assert workload.name == str(tmp_path / name)
    assert common(tokens(workload[0]), tokens(workload[1])) == 0
    assert all(arrival.hints == () and arrival.after is None and arrival.adapter is None for arrival in workload)


def test_2024_has_zones_and_whole_seconds(tmp_path: Path) -> None:
    workload = read_azure(written(tmp_path, "week.csv", AZURE_2024))
    assert workload.times.tolist() == pytest.approx([0, 1.00993, 2.5], abs=1e-6)
    assert workload.prompt_lengths.tolist() == [900, 20, 30]


def test_a_mark_of_byte_order_other_columns_and_quotes(tmp_path: Path) -> None:
    text = '\ufeffTIMESTAMP,model,GeneratedTokens,"ContextTokens"\n2023-11-16T18:00:01Z,"a",5,"6"\n\n'
    [arrival] = read_azure(written(tmp_path, "trace.csv", text))
    assert (arrival.prompt_length, arrival.output.length, arrival.time) == (6, 5, 0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no requests"),
        ("\n\n", "has no requests"),
        (HEADER, "has no requests"),
        (ROW, "line 1: the header must name TIMESTAMP, ContextTokens, GeneratedTokens, got '2023-11-16"),
        ("TIMESTAMP,ContextTokens\n", "line 1: the header must name .*, got 'TIMESTAMP,ContextTokens'"),
        (HEADER + ROW + "2023-11-16 18:00:02,-5,1\n", r"line 3: ContextTokens must be .* 16,777,216, got -5$"),
        (HEADER + ROW + "\n2023-11-16 18:00:02,5,-1\n", "line 4: GeneratedTokens must be .*, got -1$"),
        (HEADER + "2023-11-16 18:00:02,NaN,1\n", "line 2: ContextTokens must be .*, got 'NaN'"),
        (HEADER + "2023-11-16 18:00:02,5.5,1\n", r"line 2: ContextTokens must be .*, got '5\.5'"),
        (HEADER + "2023-11-16 18:00:02,,1\n", "line 2: ContextTokens must be .*, got ''"),
        (HEADER + "2023-11-16 18:00:02,1000000000000,1\n", "line 2: ContextTokens must be .*, got 1000000000000"),
        (HEADER + f"2023-11-16 18:00:02,{'9' * 9999},1\n", r"line 2: ContextTokens must be .*, got '9+\.\.\.$"),
        (HEADER + "2023-11-16 18:00:02,٣,1\n", "line 2: ContextTokens must be .*, got '٣'"),
        (HEADER + "yesterday,5,1\n", "line 2: TIMESTAMP must be such as .*, got 'yesterday'"),
        (HEADER + "2023-02-30 18:00:02,5,1\n", "line 2: TIMESTAMP must be .*, got '2023-02-30 18:00:02'"),
        (HEADER + "2023-11-16 18:00:02,5\n", "line 2: 3 columns are expected, got 2 in '2023-11-16 18:00:02,5'"),
        (HEADER + "2023-11-16 18:00:02,5,1,1\n", "line 2: 3 columns are expected, got 4"),
        (HEADER + ROW + "2023-11-16 18:00:00,5,1\n", r"line 3: the time goes back, got -1\.5 s after 0 s"),
        ((HEADER + ROW).encode("utf-16"), "line 1: not UTF-8 text, got b'"),
        (HEADER.encode() + b"2023-11-16 18:00:02,5,\xff1\n", r"line 2: not UTF-8 text, got b'\\xff1"),
        (b"\x1f\x8b\x08\x00truncated", "(is no complete gzip file|cannot be read): "),
        (b"\x00" * 100, "line 1: the header must name"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    path = written(tmp_path, "trace.csv", text)
    with pytest.raises(ValueError, match=f"trace.csv(, | ){complaint}") as error:
        read_azure(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400 + len(str(path))


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "trace.csv", HEADER.encode() + b"5" * (2**24 + 1))
    with pytest.raises(ValueError, match="line 2: more than 16,777,216 bytes, got b'5555"):
        read_azure(path)


def test_a_packed_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "trace.csv.gz", AZURE_2023)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(ValueError, match=r"trace\.csv\.gz is no complete gzip file"):
        read_azure(path)


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.csv cannot be read: No such file"):
        read_azure(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_azure(tmp_path)


def test_what_takes_long_shows_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "trace.csv", AZURE_2023)
    read_azure(path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(trace_file, "PROGRESS_DELAY", 0)
    read_azure(path)
    assert "trace.csv:   0%" in capsys.readouterr().err


def test_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(pipe.write_text, AZURE_2024, "utf-8")
        assert len(read_azure(pipe)) == 3
        writing.result()
