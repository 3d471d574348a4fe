"""Columns: collects requests one after the other and makes a Workload of them. Knows no format."""

from array import array

import numpy as np

from .workload import Workload


class Columns:
    """Mutable. A request's segments are added first, then the request."""

    def __init__(self) -> None:
        self._times = array("d")
        self._outputs = array("q")
        self._priorities = array("q")
        self._after = array("q")
        self._adapter = array("q")
        self._ends = array("q")
        self._keys = array("Q")
        self._lengths = array("q")
        self._ends_message = array("b")
        self._first = self._latest = 0.0

    def __len__(self) -> int:
        return len(self._times)

    def add_segment(self, key: int, length: int, *, ends_message: bool) -> None:
        """One more of the request that is added next."""
        self._keys.append(key)
        self._lengths.append(length)
        self._ends_message.append(ends_message)

    def add(self, time: float, output_length: int, *, after: int = -1, adapter: int = -1, priority: int = 0) -> None:
        """time: seconds since anything, or with `after` since that one's answer. Raises ValueError where time goes
        back."""
        if after < 0:
            if not len(self):
                self._first = self._latest = time
            if time < self._latest:
                raise ValueError(
                    f"the time goes back, got {time - self._first:g} s after {self._latest - self._first:g} s "
                    f"(counted from the first request): sort the file by time"
                )
            self._latest = time
            time -= self._first
        self._times.append(time)
        self._outputs.append(output_length)
        self._after.append(after)
        self._adapter.append(adapter)
        self._priorities.append(priority)
        self._ends.append(len(self._keys))

    def workload(self, name: str, adapters: dict[str, int] | None = None) -> Workload:
        """adapters: ranks by name, in the order of their indices. Raises ValueError where there is no request."""
        return Workload(
            name=name,
            times=np.frombuffer(self._times, np.float64),
            output_lengths=np.frombuffer(self._outputs, np.int64),
            priorities=np.frombuffer(self._priorities, np.int64),
            after=np.frombuffer(self._after, np.int64),
            adapter=np.frombuffer(self._adapter, np.int64),
            ends=np.frombuffer(self._ends, np.int64),
            keys=np.frombuffer(self._keys, np.uint64),
            lengths=np.frombuffer(self._lengths, np.int64),
            ends_message=np.frombuffer(self._ends_message, np.bool_),
            adapters=tuple(adapters or ()),
            ranks=tuple((adapters or {}).values()),
        )
