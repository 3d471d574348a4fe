"""EvictionOrder: what to give up first, by GreedyDual (Young 1994; Cao and Irani 1997). Knows items, not their memory.

An item's priority is the clock when it was placed plus what it saves per unit of memory; the least goes first, and the
clock rises to the priority of what went. So of equal savings the least recently placed goes first, and savings age.
"""

import heapq
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

COMPACT_ABOVE = 1024  # void entries are tolerated up to as many as valid ones and this


class EvictionOrder(Generic[T]):
    """A heap whose entries are void once their item was placed anew or forgotten."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._valid: dict[T, int] = {}  # item -> serial number of its one valid entry
        self._serial = count(1)
        self._clock = 0.0
        self._compact_at = COMPACT_ABOVE

    def __len__(self) -> int:
        """Entries in memory, void ones included."""
        return len(self._heap)

    def place(self, item: T, saved_per_unit: float) -> None:
        """Mutates: the item gets a fresh place."""
        serial = next(self._serial)
        self._valid[item] = serial
        heapq.heappush(self._heap, (self._clock + saved_per_unit, serial, item))
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)
            self._compact_at = 2 * len(self._heap) + COMPACT_ABOVE

    def forget(self, item: T) -> None:
        """Mutates: the item has nothing to give up (any more)."""
        self._valid.pop(item, None)

    def victims(self) -> Iterator[T]:
        """Mutates: items in order of eviction. Those that the caller does not forget keep their place."""
        kept: list[tuple[float, int, T]] = []
        try:
            while self._heap:
                entry = heapq.heappop(self._heap)
                if self._valid.get(entry[2]) == entry[1]:
                    kept.append(entry)
                    yield entry[2]
        finally:
            for entry in kept:
                if self._valid.get(entry[2]) == entry[1]:
                    heapq.heappush(self._heap, entry)
                elif entry[2] not in self._valid:
                    self._clock = max(self._clock, entry[0])
