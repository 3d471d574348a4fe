"""A JSON file is read as an object, or refused in one sentence."""

from pathlib import Path

import pytest

from hybrid.models.blueprint.json_object import MAX_BYTES, read_json


def test_an_object_is_read_and_a_missing_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1]}')
    assert read_json(tmp_path / "a.json") == {"a": [1]}
    assert read_json(tmp_path / "b.json") is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "holds a JSON list, not an object"),
        (b"{", "is not JSON: "),
        (b"\xff", "cannot be read: "),
        (b"[" * 100_000, "is not JSON: "),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON: "),
    ],
)
def test_what_is_no_object_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        read_json(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(caught.value)


def test_a_file_too_large_for_memory_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(ValueError, match=f"is larger than {MAX_BYTES:,} bytes"):
        read_json(tmp_path / "a.json")
