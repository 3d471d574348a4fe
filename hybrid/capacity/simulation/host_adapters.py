"""HostAdapters: adapters on their way from disk to host memory, as `AdapterStore` reads them: one after the other.

Knows bytes and a clock. How an adapter gets from the host to the device is part of a step's work.
"""

from collections.abc import Callable

from hybrid.adapters.registry import Adapter
from hybrid.pools.sizing import lora_units
from hybrid.scheduler.request import Gate, GateStatus

READ_BANDWIDTH = 2e9  # bytes per second; a common NVMe disk


class HostAdapters:
    """An adapter is read when a request first asks for it, and stays."""

    def __init__(self, bytes_per_unit: int, clock: Callable[[], float]) -> None:
        self._bytes_per_unit = bytes_per_unit
        self._clock = clock
        self._adapters: dict[str, Adapter] = {}
        self._ready: dict[str, float] = {}

    def get(self, name: str, rank: int) -> tuple[Adapter, tuple[Gate, ...]]:
        """Mutates: the adapter is being read, if it was not. The gates at which its request waits."""
        if name not in self._adapters:
            self._adapters[name] = Adapter(name, len(self._adapters) + 1, rank)
            begins = max(self._clock(), *self._ready.values()) if self._ready else self._clock()
            self._ready[name] = begins + lora_units(rank) * self._bytes_per_unit / READ_BANDWIDTH
        ready = self._ready[name]

        def poll() -> GateStatus:
            return GateStatus.READY if self._clock() >= ready else GateStatus.PENDING

        gates = () if poll() is GateStatus.READY else (Gate("adapter", poll),)
        return self._adapters[name], gates

    def next_ready(self) -> float:
        """When the next gate opens; infinite when all are open."""
        now = self._clock()
        return min((ready for ready in self._ready.values() if ready > now), default=float("inf"))
