"""Arrivals: which request of a workload comes next, and when. Later turns come once their earlier one was answered."""

import heapq

import numpy as np

from ..workload.workload import Workload


class Arrivals:
    """Nothing comes after `end` seconds. A request is named by its index in the workload."""

    def __init__(self, workload: Workload, end: float) -> None:
        self._end = end
        self._waits = workload.times  # of a later turn: after the answer
        self._opening = np.flatnonzero((workload.after < 0) & (workload.times <= end))
        self._opening_times = workload.times[self._opening]
        self._next, self._next_opening = 0, float(self._opening_times[0])
        self._due: list[tuple[float, int]] = []  # a heap of later turns
        self._followers: dict[int, list[int]] = {}
        for index in np.flatnonzero(workload.after >= 0).tolist():
            self._followers.setdefault(int(workload.after[index]), []).append(index)

    @property
    def last_opening(self) -> float:
        """When the last request comes that follows no other."""
        return float(self._opening_times[-1])

    def next_time(self) -> float:
        """When something comes next; infinite when nothing is known to come."""
        return min(self._next_opening, self._due[0][0]) if self._due else self._next_opening

    def most(self) -> int:
        """The most requests that can come in all."""
        reached, frontier = 0, self._opening.tolist()
        while frontier:
            reached += len(frontier)
            frontier = [follower for index in frontier for follower in self._followers.get(index, ())]
        return reached

    def pop(self, now: float) -> list[tuple[float, int]]:
        """Mutates: (time, index) of all that has come until now, in order."""
        if now < self.next_time():
            return []
        until = int(np.searchsorted(self._opening_times, now, side="right"))
        come = list(zip(self._opening_times[self._next : until].tolist(), self._opening[self._next : until].tolist()))
        if until > self._next:
            self._next = until
            self._next_opening = float(self._opening_times[until]) if until < len(self._opening) else float("inf")
        while self._due and self._due[0][0] <= now:
            come.append(heapq.heappop(self._due))
        return sorted(come)

    def answered(self, index: int, now: float) -> None:
        """Mutates: its later turns will come."""
        for follower in self._followers.get(index, ()):
            time = now + float(self._waits[follower])
            if time <= self._end:
                heapq.heappush(self._due, (time, follower))
