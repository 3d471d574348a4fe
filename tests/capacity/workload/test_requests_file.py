"""Our own traces: sessions, shared beginnings, adapters, images, priorities."""

from pathlib import Path

import pytest

from hybrid.capacity.workload.requests_file import read_requests
from hybrid.capacity.workload.summary import summarize
from hybrid.capacity.workload.workload import Workload
from tests.capacity.workload.traces import REQUESTS, common, json_lines, tokens, written


def read(folder: Path, *rows: object, image_tokens: int = 64) -> Workload:
    return read_requests(written(folder, "own.jsonl", json_lines(*rows)), image_tokens=image_tokens)


def test_every_field(tmp_path: Path) -> None:
    workload = read(tmp_path, *REQUESTS)
    first, later, adapted, urgent = workload
    assert [arrival.time for arrival in workload] == [0, 2.5, 2, 2]
    assert [arrival.after for arrival in workload] == [None, 0, None, None]
    assert [arrival.prompt_length for arrival in workload] == [300, 300 + 20 + 64 + 40, 250, 128 + 60]
    assert [(arrival.adapter, arrival.rank) for arrival in workload] == [(None, 0), (None, 0), ("sql", 8), ("sql", 8)]
    assert [arrival.priority for arrival in workload] == [0, 0, 0, -1]
    assert [(image.offset, image.num_tokens) for image in later.images] == [(320, 64)]
    assert [(image.offset, image.num_tokens) for image in urgent.images] == [(0, 64), (64, 64)]
    assert urgent.images[0].key == later.images[0].key != urgent.images[1].key
    assert first.hints == (200,) and later.hints == (200, 300, 320)
    assert common(tokens(first), tokens(adapted)) == 200
    assert later.prompt[: len(first.prompt) + 1] == (*first.prompt, first.output)


def test_what_is_shared_is_counted_per_adapter(tmp_path: Path) -> None:
    summary = summarize(read(tmp_path, *REQUESTS))
    assert summary.shared_tokens == 320  # the second turn's; the shared beginning is another one under an adapter
    without = [{name: value for name, value in row.items() if name not in ("adapter", "rank")} for row in REQUESTS]
    assert summarize(read(tmp_path, *without)).shared_tokens == 320 + 200


def test_sessions_may_interleave_and_a_later_beginning_is_shared_only_behind_equal_ones(tmp_path: Path) -> None:
    document = {"input_length": 100, "output_length": 3, "prefix": [["document", 90]]}
    opening = {"time": 0, "input_length": 50, "output_length": 3, "prefix": [["system", 50]]}
    workload = read(
        tmp_path,
        opening | {"session": 1},
        opening | {"session": 2},
        document | {"session": 1},
        document | {"session": 2, "think": 1},
    )
    assert workload.after.tolist() == [-1, -1, 0, 1]
    assert workload.sessions.tolist() == [0, 1, 0, 1]
    assert summarize(workload).shared_tokens == 50 + 53 + 53


BASE = {"time": 3, "input_length": 100, "output_length": 5}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (BASE | {"time": 2}, "the time goes back, got -1 s after 0 s"),
        (BASE | {"time": "3"}, "time must be a number from 0 to 1e[+]11, got '3'"),
        ({"input_length": 100, "output_length": 5}, "time is missing"),
        ({"time": 3, "input_length": 100}, "output_length is missing"),
        (BASE | {"output_length": 0}, "output_length must be a whole number from 1 .*, got 0"),
        (BASE | {"input_length": 0}, "input_length must be a whole number from 1 .*, got 0"),
        (BASE | {"think": 3}, "the first turn of a session, .*, not think, got 3"),
        (BASE | {"session": "s"}, "a later turn of session 's' has think, .*, not time, got 3"),
        (BASE | {"session": ""}, "session needs a name, got ''"),
        (BASE | {"prefix": "system"}, "prefix must be such as .*, got 'system'"),
        (BASE | {"prefix": [["system"]]}, r"prefix must be such as .*, got \[\['system'\]\]"),
        (BASE | {"prefix": [["system", 0]]}, "prefix must be a whole number .*, got 0"),
        (BASE | {"prefix": [["a", 60], ["b", 41]]}, "prefix is longer than input_length 100, got"),
        (BASE | {"images": 1}, "images must be a list of names .*, got 1"),
        (BASE | {"images": [None]}, "images needs a name, got None"),
        (BASE | {"adapter": ["sql"]}, r"adapter needs a name, got \['sql'\]"),
        (BASE | {"adapter": "sql", "rank": 16}, "adapter 'sql' had rank 8 before, got 16"),
        (BASE | {"adapter": "new", "rank": 0}, "rank must be a whole number from 1 .*, got 0"),
        (BASE | {"rank": 8}, "rank is an adapter's, and there is none, got 8"),
        (BASE | {"priority": 0.5}, r"priority must be a whole number .*, got 0\.5"),
        (BASE | {"prioritty": 1}, "unknown field 'prioritty'; there are adapter, images, input_length"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, row: dict[str, object], complaint: str) -> None:
    first = BASE | {"session": "s", "adapter": "sql", "rank": 8}
    with pytest.raises(ValueError, match=rf"own\.jsonl, line 2: {complaint}"):
        read(tmp_path, first, row)


def test_images_need_a_model_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 2: the model takes no images, got \['cat'\]"):
        read(tmp_path, *REQUESTS, image_tokens=0)
