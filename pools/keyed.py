"""KeyedPool: units that belong to a key many requests share: an image by its `mm_hash`, a LoRA adapter by its
`lora_id`.

An entry is in use while requests hold it, stays cached afterwards, and is evicted least recently used first. It can be
shared from the plan that fills it onwards (plans run in order), but only `confirm` (that plan was processed) makes
it a cached entry that outlives its users.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from .ledger import Ints, UnitPool

K = TypeVar("K", bound=Hashable)


class KeyedPool(UnitPool, Generic[K]):
    """UnitPool with a least-recently-used table key -> units."""

    def __init__(self, name: str, unit: str, capacity: int) -> None:
        super().__init__(name, unit, capacity)
        self._units: OrderedDict[K, Ints] = OrderedDict()
        self._confirmed: set[K] = set()
        self.evict = self._evict_idle
        self.num_loads = 0  # entries made
        self.num_hits = 0  # times that a request found an entry and came to hold it
        self.num_evictions = 0

    def get(self, key: K) -> Ints | None:
        """The units of `key`, or None. Pure."""
        return self._units.get(key)

    def is_confirmed(self, key: K) -> bool:
        return key in self._confirmed

    def insert(self, key: K, units: Ints) -> None:
        """Mutates: `units` (just taken, one user) become the entry of `key`."""
        assert key not in self._units, f"{self.name}: {key!r} is there already"
        self._units[key] = units
        self.num_loads += 1

    def confirm(self, key: K, units: Ints) -> None:
        """Mutates: the step that filled `units` was processed. Ignored if the entry was dropped or replaced
        meanwhile."""
        if self.is_unconfirmed(key, units):
            self.publish(units)
            self._confirmed.add(key)

    def is_unconfirmed(self, key: K, units: Ints) -> bool:
        """Whether `units` are the entry of `key` and the step that fills them has not been processed. Pure."""
        return self._units.get(key) is units and key not in self._confirmed

    def use(self, key: K) -> None:
        """Mutates: a request found `key` and holds it; it is the most recently used."""
        self._units.move_to_end(key)
        self.num_hits += 1

    def leave(self, key: K, units: Ints, until_step: int = 0) -> None:
        """Mutates: one user less. An unconfirmed entry without users is dropped."""
        self.release(units, until_step)
        if self.is_unconfirmed(key, units) and self.refs[units[0]] == 0:
            del self._units[key]

    def forget(self, key: K) -> None:
        """Mutates: the entry is void (unloaded, or its step failed); present users keep their units until they
        leave."""
        units = self._units.pop(key, None)
        if units is not None and key in self._confirmed:
            self._confirmed.discard(key)
            self.unpublish(units)

    def forget_idle(self) -> None:
        """Mutates: entries without users are void."""
        for key in [key for key, units in self._units.items() if self.refs[units[0]] == 0]:
            self.forget(key)

    def _evict_idle(self, n: int) -> None:
        for key, units in list(self._units.items()):
            if self.num_free >= n:
                return
            if key in self._confirmed and self.refs[units[0]] == 0 and self.busy[units].max() <= self.settled_step:
                self.forget(key)
                self.num_evictions += 1
