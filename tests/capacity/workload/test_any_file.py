"""Whatever a file holds, it is a workload or one sentence."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.capacity.workload.azure import read_azure
from hybrid.capacity.workload.mooncake import read_mooncake
from hybrid.capacity.workload.requests_file import read_requests
from hybrid.capacity.workload.summary import summarize
from hybrid.capacity.workload.workload import Workload
from tests.capacity.workload.traces import AZURE_2023, AZURE_2024, MOONCAKE, REQUESTS, json_lines

SEEDS = [AZURE_2023.encode(), AZURE_2024.encode(), json_lines(*MOONCAKE).encode(), json_lines(*REQUESTS).encode()]
PIECES = [b"-", b"9" * 30, b"\n", b"\r", b'"', b"NaN", b"null", b"1e999", b"[", b"{}", b"\xff", b"\x00", b",", b"\\u"]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A trace of which some bytes are replaced, or any bytes at all."""
    text = draw(st.sampled_from(SEEDS) | st.binary(max_size=60))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 9)))
        text = text[:start] + draw(st.sampled_from(PIECES) | st.binary(max_size=4)) + text[stop:]
    return text


@pytest.mark.parametrize("read", [read_azure, read_mooncake, read_requests])
@given(damaged())
def test_a_damaged_file(read: Callable[[Path], Workload], text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        path.write_bytes(text)
        complaint = ""
        try:
            workload = read(path)
        except ValueError as error:
            complaint = str(error)
    if complaint:
        assert complaint.startswith(str(path)) and "\n" not in complaint
        return
    for arrival in workload:
        assert arrival.time >= 0 and arrival.prompt_length >= 1 and arrival.output.length >= 1
    assert 0 <= summarize(workload).shared_tokens <= workload.prompt_lengths.sum()
