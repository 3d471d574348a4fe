"""Journal: notes what becomes of every request while a simulation runs, and turns it into Records."""

import numpy as np
from numpy.typing import NDArray

from ..workload.workload import Workload
from .records import Fate, Ints, Records


class Journal:
    """A column of each kind over all requests of a workload, which are named by their index."""

    def __init__(self, workload: Workload, warmup: float) -> None:
        """warmup: gaps between the tokens of requests that arrive earlier are not kept."""
        n = len(workload)
        self._warmup = warmup
        self._fate = np.full(n, Fate.UNSENT, dtype=np.int8)
        self._arrival, self._added, self._admitted, self._first, self._last, self._itl_p95 = (
            np.full(n, np.nan) for _ in range(6)
        )
        self._tokens = np.zeros(n, dtype=np.int64)
        self._cached = np.zeros(n, dtype=np.int64)
        self._prompt_tokens = workload.prompt_lengths
        self._wanted = workload.output_lengths
        self._gaps: list[NDArray[np.float32]] = []
        self._error = ""

    def arrival(self, request: int) -> float:
        return float(self._arrival[request])

    def sent(self, request: int, arrival: float, now: float) -> None:
        """Mutates: it arrived then, and the engine has taken it now."""
        self._fate[request] = Fate.UNFINISHED
        self._arrival[request], self._added[request] = arrival, now

    def refused(self, request: int, why: str) -> None:
        """Mutates."""
        self._fate[request] = Fate.REFUSED
        self._error = self._error or why

    def admitted(self, request: int, now: float, num_cached_tokens: int) -> None:
        """Mutates: its first plan is made."""
        self._admitted[request], self._cached[request] = now, num_cached_tokens

    def began(self, requests: Ints, now: float) -> None:
        """Mutates: they got their first token."""
        self._first[requests] = now

    def completed(self, request: int, last: float, gaps: NDArray[np.float32]) -> None:
        """Mutates: all its tokens are there. gaps: between them."""
        self._fate[request] = Fate.COMPLETED
        self._last[request], self._tokens[request] = last, len(gaps) + 1
        if len(gaps):
            rank = -(-95 * len(gaps) // 100) - 1
            self._itl_p95[request] = np.partition(gaps, rank)[rank]
        if self._arrival[request] >= self._warmup:
            self._gaps.append(gaps)

    def failed(self, request: int, why: str) -> None:
        """Mutates: the scheduler ended it."""
        self._fate[request] = Fate.FAILED
        self._error = self._error or why

    def records(self, *, with_gaps: bool = True) -> Records:
        """As things stand: the columns themselves, which go on changing."""
        gaps = np.concatenate(self._gaps) if self._gaps and with_gaps else np.zeros(0, dtype=np.float32)
        return Records(
            warmup=self._warmup,
            fate=self._fate,
            arrival=self._arrival,
            added=self._added,
            admitted=self._admitted,
            first=self._first,
            last=self._last,
            tokens=self._tokens,
            wanted=self._wanted,
            prompt_tokens=self._prompt_tokens,
            cached=self._cached,
            itl_p95=self._itl_p95,
            gaps=gaps,
            error=self._error,
        )
