"""Records: what became of every request of a simulation, in columns. Knows no scheduler."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Fate(IntEnum):
    """What became of a request. Only COMPLETED ones can meet targets."""

    UNSENT = 0  # the simulation ended before its time came, or its earlier turn got no answer
    UNFINISHED = 1
    COMPLETED = 2
    FAILED = 3  # the scheduler gave it up
    REFUSED = 4  # it could never run


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """n requests. Times in seconds since the start; NaN where it never came to that.

    arrival: when the client sent it; added: when the engine took notice, between two steps; admitted: its first plan.
    first, last: when its first and its latest token were handed out. tokens: so many, of those that the
    workload says (wanted). cached: prompt tokens found in
    the prefix cache at its first admission. itl_p95: the least time that 95 % of the gaps
    between its tokens do not exceed, once completed.
    gaps: between tokens of all completed requests that were measured. error: why the first one failed or was
    refused. warmup: what arrives earlier is not measured.
    """

    warmup: float
    fate: NDArray[np.int8]  # [n] of Fate
    arrival: Floats
    added: Floats
    admitted: Floats
    first: Floats
    last: Floats
    tokens: Ints
    wanted: Ints
    prompt_tokens: Ints
    cached: Ints
    itl_p95: Floats
    gaps: NDArray[np.float32]
    error: str

    def __len__(self) -> int:
        return len(self.fate)

    @property
    def measured(self) -> NDArray[np.bool_]:
        """What was sent after the warm-up."""
        measured: NDArray[np.bool_] = (self.fate != Fate.UNSENT) & (self.arrival >= self.warmup)
        return measured

    @property
    def completed(self) -> NDArray[np.bool_]:
        completed: NDArray[np.bool_] = self.fate == Fate.COMPLETED
        return completed

    @property
    def ttft(self) -> Floats:
        return self.first - self.arrival

    @property
    def e2e(self) -> Floats:
        return self.last - self.arrival

    @property
    def queue(self) -> Floats:
        """From arrival to the first plan."""
        return self.admitted - self.arrival

    @property
    def tpot(self) -> Floats:
        """Mean gap; NaN for fewer than two tokens."""
        several = self.tokens > 1
        return np.where(several, (self.last - self.first) / np.where(several, self.tokens - 1, 1), np.nan)
