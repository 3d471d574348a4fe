"""Targets: what a request must meet to count (an SLO), in seconds. Knows no engine and no workload."""

import re
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .records import Fate, Records

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Targets:
    """Each None or a positive number of seconds; a request meets the targets when it meets all of them.

    ttft: from arrival to the first token. itl: what 95 % of the gaps between its tokens do not exceed, so that long
    ones do not hide behind many short ones. tpot: the mean of these gaps, as in vLLM's benchmarks. e2e: from arrival to
    the last token. An answer of one token has no gaps, and meets itl and tpot.
    """

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __str__(self) -> str:
        given = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return ", ".join(f"{name} {value:g} s" for name, value in given.items() if value is not None)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(getattr(self, entry.name) is not None for entry in fields(self))

    def met(self, records: Records) -> NDArray[np.bool_]:
        """Which requests were answered in full and met every target. [n]"""
        met = records.completed.copy()
        for limit, values in (
            (self.ttft, records.ttft),
            (self.itl, records.itl_p95),
            (self.tpot, records.tpot),
            (self.e2e, records.e2e),
        ):
            if limit is not None:
                met &= ~(values > limit)  # what has no value breaks no limit
        return met

    def missed(self, records: Records, now: float) -> NDArray[np.bool_]:
        """Which requests that were sent have missed a target, whatever comes later. [n]"""
        ended = (records.fate != Fate.UNSENT) & (records.fate != Fate.UNFINISHED)
        missed: NDArray[np.bool_] = ended & ~self.met(records)
        unfinished = records.fate == Fate.UNFINISHED
        if self.e2e is not None:
            missed |= unfinished & (now - records.arrival > self.e2e)
        if self.ttft is not None:
            first = np.where(np.isnan(records.first), now, records.first)
            missed |= unfinished & (first - records.arrival > self.ttft)
        return missed


NO_TARGETS = Targets()


def parse_targets(text: str) -> Targets:
    """ "ttft=2s,itl=50ms,e2e=30s" -> Targets. Raises ValueError."""
    given: dict[str, float] = {}
    names = [entry.name for entry in fields(Targets)]
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in names or name in given:
            raise ValueError(f"slo must be such as ttft=2s,itl=50ms, over {', '.join(names)}, each once, got {text!r}")
        given[name] = parse_seconds(f"slo {name}", value)
    return Targets(**given)


def parse_seconds(name: str, text: str) -> float:
    """ "50ms", "2s", "10m" or a number of seconds. Raises ValueError for anything else, and for zero."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)?", text.strip().lower())
    seconds = float(match[1]) * UNITS[match[2] or "s"] if match is not None else 0.0
    if seconds <= 0:
        raise ValueError(f"{name} must be a positive time such as 50ms, 2s or 10m, got {text!r}")
    return seconds
