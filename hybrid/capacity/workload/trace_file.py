"""Trace files: numbered lines of text, plain or gzip, with a progress bar where it takes long; and checked values.

Knows no format. Every error is a ValueError; what is wrong on a line is said with the file and the line's number.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from tqdm import tqdm

from .segments import MAX_LENGTH

MAX_LINE_BYTES = 2**24
MAX_SECONDS = 1e11  # 3,000 years: times since 1970 are fine
PROGRESS_DELAY = 2.0  # seconds without a bar
REPORTED_LINES = 1000
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"


def read_lines(path: Path, take: Callable[[str], None]) -> None:
    """Calls `take` with every line that is not blank. Raises ValueError: what it raises, with file and line."""
    try:
        for number, raw in _numbered(path):
            try:
                text = raw.decode().strip()
                if text:
                    take(text)
            except UnicodeDecodeError as error:
                wrong = raw[error.start : error.start + 8]
                raise ValueError(f"{path}, line {number}: not UTF-8 text, got {wrong!r}") from None
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no complete gzip file: {error}") from None


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        total = path.stat().st_size if path.is_file() else None
        packed = file.peek(len(GZIP)).startswith(GZIP)
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        with tqdm(total=total, desc=path.name, unit="B", unit_scale=True, delay=PROGRESS_DELAY, leave=False) as bar:
            number = 0
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    raise ValueError(f"{path}, line {number}: more than {MAX_LINE_BYTES:,} bytes, got {shown(raw)}")
                if number % REPORTED_LINES == 0 and total is not None:
                    bar.update(file.tell() - bar.n)
                yield number, raw.removeprefix(BOM) if number == 1 else raw


def shown(value: object) -> str:
    """As it is named in a message, cut where it is long."""
    text = repr(value[:200] if isinstance(value, str | bytes | list) else value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def json_object(text: str, known: frozenset[str], required: frozenset[str]) -> dict[str, Any]:
    """A line's fields. Raises ValueError for what is no object, unknown names and missing ones."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"no JSON object, got {shown(text)}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"no JSON object, got {shown(text)}")
    if missing := required - fields.keys():
        raise ValueError(f"{min(missing)} is missing")
    if unknown := fields.keys() - known:
        raise ValueError(f"unknown field {shown(min(unknown))}; there are {', '.join(sorted(known))}")
    return fields


def length(name: str, value: object, least: int = 0) -> int:
    """A number of tokens. A request of none is served as one of one: nothing shorter can be asked."""
    return max(1, whole(name, value, least, MAX_LENGTH))


def whole(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low:,} to {high:,}, got {shown(value)}")
    return value


def seconds(name: str, value: object, per_second: int = 1) -> float:
    """value: a number of units of which a second has `per_second`."""
    most = MAX_SECONDS * per_second
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{name} must be a number from 0 to {most:g}, got {shown(value)}")
    return value / per_second
