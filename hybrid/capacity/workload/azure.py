"""Azure's LLM inference traces (2023 and 2024): CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens.

Lengths and times only: no two prompts share anything. Times are ISO 8601, with up to seven digits of a second's
fraction (the seventh is dropped) and with or without a zone. https://github.com/Azure/AzurePublicDataset
"""

from datetime import UTC, datetime
from pathlib import Path

from .columns import Columns
from .segments import Kind
from .trace_file import length, read_lines, shown
from .workload import Workload

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_azure(path: Path) -> Workload:
    """Raises ValueError, naming the line, for what is no such file."""
    reader = _Reader()
    read_lines(path, reader.take)
    return reader.columns.workload(str(path))


class _Reader:
    def __init__(self) -> None:
        self.columns = Columns()
        self._width = 0
        self._places: list[int] = []

    def take(self, text: str) -> None:
        cells = text.split(",")
        if '"' in text:
            cells = [cell.strip().removeprefix('"').removesuffix('"') for cell in cells]
        if not self._width:
            self._header(cells)
            return
        if len(cells) != self._width:
            raise ValueError(f"{self._width} columns are expected, got {len(cells)} in {shown(text)}")
        timestamp, context, generated = (cells[place] for place in self._places)
        prompt_length = length(COLUMNS[1], _integer(context))
        output_length = length(COLUMNS[2], _integer(generated))
        self.columns.add_segment(Kind.TEXT.key(len(self.columns)), prompt_length, ends_message=False)
        self.columns.add(_time(timestamp), output_length)

    def _header(self, cells: list[str]) -> None:
        names = [cell.strip() for cell in cells]
        for column in COLUMNS:
            if column not in names:
                raise ValueError(f"the header must name {', '.join(COLUMNS)}, got {shown(','.join(cells))}")
        self._places = [names.index(column) for column in COLUMNS]
        self._width = len(names)


def _integer(text: str) -> int | str:
    """The text itself where it is none, for the message."""
    text = text.strip()
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else text


def _time(text: str) -> float:
    """Seconds since 1970; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"TIMESTAMP must be such as 2023-11-16 18:17:03.9799600, got {shown(text)}") from None
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - EPOCH).total_seconds()
