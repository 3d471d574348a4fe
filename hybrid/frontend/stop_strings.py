"""StopStrings: finds the strings that end a request in its growing text, and holds back what may begin one.

Knows text only.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may be shown now; `stop` where a stop string was found, after which nothing follows."""

    text: str
    stop: str | None = None


class StopStrings:
    """Watches one text. What was released, joined, is the text up to the stop string (or its end, if included)."""

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include_in_output
        self._held = ""

    def push(self, text: str, may_stop: bool = True) -> Released:
        """Mutates: `text` follows. Where not `may_stop`, a stop string that ends in it is ordinary text."""
        if not self._stops:
            return Released(text)
        pending = self._held + text
        found = self._first(pending) if may_stop else None
        if found is not None:
            start, stop = found
            self._held = ""
            return Released(pending[: start + len(stop) if self._include else start], stop)
        held = max(_overlap(pending, stop) for stop in self._stops)
        self._held = pending[len(pending) - held :]
        return Released(pending[: len(pending) - held])

    def flush(self) -> str:
        """Mutates: what was held back, when no text follows."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """(start, stop string) of the one that ends first; of two that end together the longer."""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` and is not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
