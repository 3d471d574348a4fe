"""Journal: notes what becomes of every request while a simulation runs, and turns it into Records."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..workload.workload import Workload
from .records import Fate, Ints, Records


class Journal:
    """A column of each kind over all requests of a workload, which are named by their index."""

    def __init__(self, workload: Workload, warmup: float) -> None:
        """warmup: gaps between the tokens of requests that arrive earlier are not kept."""
        self._columns = Records.unsent(workload, warmup)
        self._gaps: list[NDArray[np.float32]] = []
        self._error = ""

    def arrival(self, request: int) -> float:
        return float(self._columns.arrival[request])

    def sent(self, request: int, arrival: float, now: float) -> None:
        """Mutates: it arrived then, and the engine has taken it now."""
        self._columns.fate[request] = Fate.UNFINISHED
        self._columns.arrival[request], self._columns.added[request] = arrival, now

    def refused(self, request: int, why: str) -> None:
        """Mutates."""
        self._columns.fate[request] = Fate.REFUSED
        self._error = self._error or why

    def admitted(self, request: int, now: float, num_cached_tokens: int) -> None:
        """Mutates: its first plan is made."""
        self._columns.admitted[request], self._columns.cached[request] = now, num_cached_tokens

    def began(self, requests: Ints, now: float) -> None:
        """Mutates: they got their first token."""
        self._columns.first[requests] = now

    def completed(self, request: int, last: float, gaps: NDArray[np.float32]) -> None:
        """Mutates: all its tokens are there. gaps: between them."""
        self._columns.fate[request] = Fate.COMPLETED
        self._columns.last[request], self._columns.tokens[request] = last, len(gaps) + 1
        if len(gaps):
            rank = -(-95 * len(gaps) // 100) - 1
            self._columns.itl_p95[request] = np.partition(gaps, rank)[rank]
        if self._columns.arrival[request] >= self._columns.warmup:
            self._gaps.append(gaps)

    def failed(self, request: int, why: str) -> None:
        """Mutates: the scheduler ended it."""
        self._columns.fate[request] = Fate.FAILED
        self._error = self._error or why

    def records(self, *, with_gaps: bool = True) -> Records:
        """As things stand: the columns themselves, which go on changing."""
        gaps = np.concatenate(self._gaps) if self._gaps and with_gaps else np.zeros(0, dtype=np.float32)
        return replace(self._columns, gaps=gaps, error=self._error)
