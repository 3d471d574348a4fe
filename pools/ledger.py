"""UnitPool: the counted units of one pool, who uses each of them, and the ledger that sums it up.

A unit is a block, a slot, a row or an embedding token: this file knows numbers only. A unit has `refs` (running
requests that use it), `entries` (index entries, e.g. prefix-cache nodes, that remember it) and `busy` (the last step
that reads or writes it). The ledger columns follow from these three:

    free      refs == 0, entries == 0         on the free stack
    held      refs  > 0, entries == 0
    pinned    refs  > 0, entries  > 0
    cached    refs == 0, entries  > 0         evictable
    pending   refs == 0, entries == 0         released, but a step in flight may still touch it
    reserved  claimed by the open transaction: taken out of `free` first, then out of `cached`
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

EMPTY: Ints = np.zeros(0, dtype=np.int64)
EMPTY.setflags(write=False)


class InvariantViolation(AssertionError):
    """A ledger disagrees with the units, or a unit with its owners. The message names pool, unit and owner."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The six columns of one pool, in units. Their sum is the capacity, always."""

    free: int
    reserved: int
    held: int
    cached: int
    pinned: int
    pending: int

    @property
    def total(self) -> int:
        return self.free + self.reserved + self.held + self.cached + self.pinned + self.pending


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a pool says "not now" (or never): a value, not an exception. Units are the pool's own."""

    pool: str
    unit: str
    needed: int
    available: int
    capacity: int
    never: bool

    def __str__(self) -> str:
        if self.never:
            return f"the {self.pool} pool has {self.capacity} {self.unit}s in all and {self.needed} are needed"
        there = f"{self.available} of {self.capacity} {self.unit}s available"
        return f"the {self.pool} pool has {there} and {self.needed} are needed"


class UnitPool:
    """`capacity` interchangeable units. Every mutating method keeps the ledger exact; none may fail half-way.

    `evict(n)` is set by whoever owns the index entries (prefix cache, LRU table): it must drop entries until `num_free`
    is at least n, and is only called when that is possible.
    """

    def __init__(self, name: str, unit: str, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"{name} pool: capacity {capacity} is negative")
        self.name = name
        self.unit = unit
        self.capacity = capacity
        self.refs = np.zeros(capacity, dtype=np.int32)
        self.entries = np.zeros(capacity, dtype=np.int32)
        self.busy = np.zeros(capacity, dtype=np.int64)
        self.settled_step = 0
        self.evict: Callable[[int], None] = lambda n: None
        self._stack = np.arange(capacity - 1, -1, -1, dtype=np.int64)  # unit 0 is on top
        self._num_free = capacity
        self._reserved = 0
        self._held = 0
        self._cached = 0
        self._pinned = 0
        self._pending: deque[tuple[int, Ints]] = deque()
        self._num_pending = 0
        self._last_busy = 0

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Units on the free stack, claims of an open transaction not subtracted."""
        return self._num_free

    @property
    def num_pending(self) -> int:
        return self._num_pending

    def ledger(self) -> Ledger:
        from_free = min(self._reserved, self._num_free)
        return Ledger(
            free=self._num_free - from_free,
            reserved=self._reserved,
            held=self._held,
            cached=self._cached - (self._reserved - from_free),
            pinned=self._pinned,
            pending=self._num_pending,
        )

    def evictable(self) -> int:
        """Cached units that no step in flight touches."""
        if self._cached == 0 or self._last_busy <= self.settled_step:
            return self._cached
        return int(np.count_nonzero((self.refs == 0) & (self.entries > 0) & (self.busy <= self.settled_step)))

    def obtainable(self) -> int:
        """Units that `take` could hand out now, evicting if need be."""
        return self._num_free + self.evictable() - self._reserved

    def available(self) -> int:
        """Units that a new claim may count on. Less than `obtainable` in a pool with promises (see WindowPool)."""
        return self.obtainable()

    def shortage(self, needed: int, take: int | None = None) -> Shortage | None:
        """Pure: None if `needed` units may be claimed now, `take` of them (default: all) handed out at once."""
        available = self.available()
        if needed <= available and (take is None or take <= self.obtainable()):
            return None
        return Shortage(
            self.name,
            self.unit,
            needed,
            max(0, min(available, self.obtainable())),
            self.capacity,
            needed > self.capacity,
        )

    # --- claims: used by Transaction only ------------------------------------------------------------------------

    def claim(self, charge: int, take: int) -> None:
        self._reserved += take

    def unclaim(self, charge: int, take: int) -> None:
        self._reserved -= take

    def settle_claim(self, charge: int, take: int) -> Ints:
        """Turn a claim into `take` held units, evicting as needed."""
        self.unclaim(charge, take)
        return self._take(take)

    # --- units change hands --------------------------------------------------------------------------------------

    def _take(self, n: int) -> Ints:
        if n == 0:
            return EMPTY
        if self._num_free < n:
            self.evict(n)
        assert self._num_free >= n, f"{self.name}: eviction left {self._num_free} free, {n} were granted"
        self._num_free -= n
        ids = self._stack[self._num_free : self._num_free + n].copy()
        self.refs[ids] = 1
        self._held += n
        return ids

    def share(self, ids: Ints) -> None:
        """One more running user for each unit (distinct ids, none of them free)."""
        if len(ids) == 0:
            return
        refs = self.refs[ids]
        entries = self.entries[ids]
        if np.any((refs == 0) & (entries == 0)):
            raise InvariantViolation(f"{self.name}: a free {self.unit} among {ids.tolist()} was given an owner")
        fresh = int(np.count_nonzero(refs == 0))
        self._cached -= fresh
        self._pinned += fresh
        self.refs[ids] = refs + 1

    def release(self, ids: Ints, until_step: int = 0) -> None:
        """One running user less for each id (an id may appear several times). Units that nobody uses or remembers
        become free, or pending while a step <= `until_step` is not settled."""
        if len(ids) == 0:
            return
        np.subtract.at(self.refs, ids, 1)
        left = self.refs[ids]
        if left.min() < 0:
            np.add.at(self.refs, ids, 1)
            raise InvariantViolation(f"{self.name}: {self.unit} {int(ids[left < 0][0])} was freed twice")
        if until_step > self.settled_step:
            self.busy[ids] = np.maximum(self.busy[ids], until_step)
            self._last_busy = max(self._last_busy, until_step)
        dropped = ids[left == 0]
        if len(dropped) == 0:
            return
        if len(dropped) > 1:
            dropped = np.unique(dropped)
        remembered = self.entries[dropped] > 0
        num_remembered = int(np.count_nonzero(remembered))
        self._pinned -= num_remembered
        self._cached += num_remembered
        self._held -= len(dropped) - num_remembered
        if num_remembered < len(dropped):
            self._free(dropped[~remembered] if num_remembered else dropped)

    def publish(self, ids: Ints) -> None:
        """One more index entry for each unit (distinct ids, all of them used or remembered)."""
        if len(ids) == 0:
            return
        entries = self.entries[ids]
        refs = self.refs[ids]
        if np.any((refs == 0) & (entries == 0)):
            raise InvariantViolation(f"{self.name}: a free {self.unit} among {ids.tolist()} was published")
        fresh = int(np.count_nonzero(entries == 0))
        self._held -= fresh
        self._pinned += fresh
        self.entries[ids] = entries + 1

    def unpublish(self, ids: Ints) -> None:
        """One index entry less for each unit (distinct ids). Units that nobody uses any more become free."""
        if len(ids) == 0:
            return
        entries = self.entries[ids] - 1
        if entries.min() < 0:
            raise InvariantViolation(f"{self.name}: {self.unit} {int(ids[entries < 0][0])} was forgotten twice")
        self.entries[ids] = entries
        gone = ids[entries == 0]
        if len(gone) == 0:
            return
        used = self.refs[gone] > 0
        num_used = int(np.count_nonzero(used))
        self._pinned -= num_used
        self._held += num_used
        self._cached -= len(gone) - num_used
        if num_used < len(gone):
            self._free(gone[~used])

    def touch_until(self, ids: Ints, step: int) -> None:
        """A step reads these units without owning them (the source of a copy)."""
        if len(ids):
            self.busy[ids] = np.maximum(self.busy[ids], step)
            self._last_busy = max(self._last_busy, step)

    def settle(self, step: int) -> None:
        """All steps up to `step` have been processed: what waited for them becomes free."""
        self.settled_step = step
        while self._pending and self._pending[0][0] <= step:
            _, ids = self._pending.popleft()
            self._num_pending -= len(ids)
            self._push(ids)

    def _free(self, ids: Ints) -> None:
        """Distinct ids without users or entries go to the free stack, or wait for the step that touches them."""
        if self._last_busy <= self.settled_step:
            self._push(ids)
            return
        until = self.busy[ids]
        self._push(ids[until <= self.settled_step])
        for step in np.unique(until[until > self.settled_step]).tolist():
            waiting = ids[until == step]
            self._num_pending += len(waiting)
            self._pending.append((step, waiting))
            if len(self._pending) > 1 and self._pending[-2][0] > step:
                self._pending = deque(sorted(self._pending, key=lambda entry: entry[0]))

    def _push(self, ids: Ints) -> None:
        n = len(ids)
        self._stack[self._num_free : self._num_free + n] = ids
        self._num_free += n

    # --- invariants ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Recount everything from the units. Raises InvariantViolation naming the first disagreement."""
        idle = np.concatenate([self._stack[: self._num_free], *(ids for _, ids in self._pending)])
        times = np.bincount(idle, minlength=self.capacity)
        used, known = self.refs > 0, self.entries > 0
        # 0: nobody's and not idle, 1: held, 2: cached, 3: pinned, 4: idle; more: idle and owned, or idle twice
        kinds = np.bincount(4 * times + 2 * known + used, minlength=5).tolist()
        num_idle = self._num_free + self._num_pending
        enough = self._reserved <= self._num_free + self._cached
        if kinds == [0, self._held, self._cached, self._pinned, num_idle] and enough:
            return
        if times.max(initial=0) > 1:
            raise InvariantViolation(f"{self.name}: {self.unit} {int(times.argmax())} was freed twice")
        owned = np.flatnonzero((times > 0) & (used | known))
        if len(owned):
            raise InvariantViolation(f"{self.name}: {self.unit} {int(owned[0])} is free but has an owner")
        counted = {"held": kinds[1], "cached": kinds[2], "pinned": kinds[3], "leaked": kinds[0]}
        raise InvariantViolation(f"{self.name}: {self.ledger()} of {self.capacity}, but the units say {counted}")
