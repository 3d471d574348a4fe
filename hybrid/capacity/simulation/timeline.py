"""Timeline: ledgers, queue and batch over simulated time, sampled. Reads the scheduler, changes nothing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid.pools.ledger import Ledger
from hybrid.scheduler.scheduler import Scheduler

MOST_SAMPLES = 2048  # more are thinned out
ORDER = "order"


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """n moments, each right after a step was planned.

    in_use, cached [n, pools]: shares of each pool's capacity that requests hold, and that only the cache remembers.
    waiting_for: seconds times requests that waited, by what held them: the pool that they, or those before them,
    lacked units of; "gate", an adapter that was being read; "order", where every pool had room: the steps were full,
    or an earlier request was computing what both begin with.
    """

    times: NDArray[np.float64]
    pools: tuple[str, ...]
    in_use: NDArray[np.float64]
    cached: NDArray[np.float64]
    waiting: NDArray[np.int64]
    running: NDArray[np.int64]
    waiting_for: dict[str, float]


class Recorder:
    """Takes a sample every `interval` seconds; half as often whenever there are too many."""

    def __init__(self, scheduler: Scheduler, interval: float) -> None:
        self._scheduler = scheduler
        self._interval = interval
        self._previous = 0.0
        self._causes: Counter[str] = Counter()  # of waiting, since then
        self.due = 0.0  # when the next sample is wanted
        self._pools = tuple(pool.name for pool in scheduler.memory.pools if pool.capacity)
        self._times: list[float] = []
        self._samples: list[tuple[int, int, list[Ledger]]] = []
        self._waiting_for: dict[str, float] = {}

    def sample(self, now: float) -> int:
        """Mutates: how things stand now counts until the next sample. Returns how many wait."""
        stats = self._scheduler.stats()
        for cause, count in self._causes.items():
            self._waiting_for[cause] = self._waiting_for.get(cause, 0.0) + count * (now - self._previous)
        self._previous, self._causes = now, self._causes_of(stats.waiting_for)
        self._times.append(now)
        self._samples.append((stats.num_waiting, stats.num_running, [stats.ledgers[name] for name in self._pools]))
        if len(self._times) > MOST_SAMPLES:
            self._times, self._samples, self._interval = self._times[::2], self._samples[::2], 2 * self._interval
        self.due = now + self._interval
        return stats.num_waiting

    def _causes_of(self, waiting_for: Mapping[str, int]) -> Counter[str]:
        """Those behind others wait for what these lack. Pure."""
        causes = Counter(waiting_for)
        rows = self._scheduler.memory.rows
        lacking = [(count, name) for name, count in causes.items() if name in self._pools]
        cause = rows.name if rows.available() <= 0 else max(lacking)[1] if lacking else ORDER
        if behind := causes.pop(ORDER, 0):
            causes[cause] += behind
        return causes

    def timeline(self) -> Timeline:
        """All samples. Pure."""
        columns = np.array(
            [
                [(ledger.reserved + ledger.held + ledger.pinned + ledger.pending, ledger.cached) for ledger in ledgers]
                for _, _, ledgers in self._samples
            ],
            dtype=np.float64,
        ).reshape(len(self._samples), len(self._pools), 2)
        capacities = np.array([pool.capacity for pool in self._scheduler.memory.pools if pool.capacity])
        return Timeline(
            times=np.array(self._times),
            pools=self._pools,
            in_use=columns[:, :, 0] / capacities,
            cached=columns[:, :, 1] / capacities,
            waiting=np.array([waiting for waiting, _, _ in self._samples], dtype=np.int64),
            running=np.array([running for _, running, _ in self._samples], dtype=np.int64),
            waiting_for=dict(sorted(self._waiting_for.items(), key=lambda entry: -entry[1])),
        )
