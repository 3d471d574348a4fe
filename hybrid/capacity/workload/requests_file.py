"""Our own traces: JSON lines, a request each, with what the public formats cannot say: sessions, shared beginnings,
adapters, images, priorities. docs/planning.md describes the fields.
"""

from pathlib import Path
from typing import Any

from .columns import Columns
from .segments import MAX_LENGTH, Kind
from .trace_file import json_object, length, read_lines, seconds, shown, whole
from .workload import Workload

REQUIRED = frozenset({"input_length", "output_length"})
FIELDS = REQUIRED | {"time", "think", "session", "prefix", "images", "adapter", "rank", "priority"}
MAX_RANK = 4096
MAX_PRIORITY = 2**31 - 1


def read_requests(path: Path, *, image_tokens: int = 0, rank: int = 16) -> Workload:
    """image_tokens: of one image, 0 for a model without. rank: of an adapter whose rank no line says. Raises
    ValueError, naming the line."""
    reader = _Reader(image_tokens, rank)
    read_lines(path, reader.take)
    return reader.columns.workload(str(path), reader.adapters)


class _Reader:
    def __init__(self, image_tokens: int, rank: int) -> None:
        self.columns = Columns()
        self.adapters: dict[str, int] = {}
        self._image_tokens = image_tokens
        self._rank = rank
        self._sessions: dict[str, int] = {}  # the index of the latest turn
        self._adapter_index: dict[str, int] = {}
        self._prefixes: dict[str, int] = {}
        self._images: dict[str, int] = {}

    def take(self, text: str) -> None:
        fields = json_object(text, FIELDS, REQUIRED)
        session = _name("session", fields["session"]) if "session" in fields else None
        after = self._sessions.get(session, -1) if session is not None else -1
        wanted, other = ("time", "think") if after < 0 else ("think", "time")
        if other in fields:
            kind = (
                "the first turn of a session, or one without a session, has a time"
                if after < 0
                else (f"a later turn of session {shown(session)} has think, the seconds since the answer before it")
            )
            raise ValueError(f"{kind}, not {other}, got {shown(fields[other])}")
        if after < 0 and "time" not in fields:
            raise ValueError("time is missing")
        time = seconds(wanted, fields.get(wanted, 0))
        output_length = length("output_length", fields["output_length"], 1)
        priority = whole("priority", fields.get("priority", 0), -MAX_PRIORITY, MAX_PRIORITY)
        adapter = self._adapter(fields)
        self._prompt(fields)
        self.columns.add(time, output_length, after=after, adapter=adapter, priority=priority)
        if session is not None:
            self._sessions[session] = len(self.columns) - 1

    def _prompt(self, fields: dict[str, Any]) -> None:
        """Shared beginnings, then images, then text."""
        text_length = length("input_length", fields["input_length"], 1)
        prefix = fields.get("prefix", [])
        if not isinstance(prefix, list) or not all(isinstance(part, list) and len(part) == 2 for part in prefix):
            raise ValueError(f'prefix must be such as [["system", 1024]], got {shown(prefix)}')
        images = fields.get("images", [])
        if not isinstance(images, list):
            raise ValueError(f'images must be a list of names such as ["cat.png"], got {shown(images)}')
        if images and not self._image_tokens:
            raise ValueError(f"the model takes no images, got {shown(images)}")
        pieces = []
        for name, tokens in prefix:
            number = self._prefixes.setdefault(_name("prefix", name), len(self._prefixes))
            pieces.append((Kind.NAMED.key(number), whole("prefix", tokens, 1, MAX_LENGTH), True))
        if (rest := text_length - sum(piece[1] for piece in pieces)) < 0:
            raise ValueError(f"prefix is longer than input_length {text_length:,}, got {shown(prefix)}")
        for name in images:
            number = self._images.setdefault(_name("images", name), len(self._images))
            pieces.append((Kind.IMAGE.key(number), self._image_tokens, False))
        if rest:
            pieces.append((Kind.TEXT.key(len(self.columns)), rest, True))
        for key, tokens, ends_message in pieces:
            self.columns.add_segment(key, tokens, ends_message=ends_message)

    def _adapter(self, fields: dict[str, Any]) -> int:
        """Its index, -1: none."""
        if "adapter" not in fields:
            if "rank" in fields:
                raise ValueError(f"rank is an adapter's, and there is none, got {shown(fields['rank'])}")
            return -1
        name = _name("adapter", fields["adapter"])
        rank = whole("rank", fields.get("rank", self.adapters.get(name, self._rank)), 1, MAX_RANK)
        if self.adapters.setdefault(name, rank) != rank:
            raise ValueError(f"adapter {shown(name)} had rank {self.adapters[name]} before, got {rank}")
        return self._adapter_index.setdefault(name, len(self._adapter_index))


def _name(field: str, value: object) -> str:
    """A number is a name too."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"{field} needs a name, got {shown(value)}")
    return str(value)
