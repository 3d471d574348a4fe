"""WaitingQueue: requests without memory, those not ready apart from those that may ask for it. Knows no pool."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from .config import SchedulerConfig
from .order import by_arrival, depth_first_by_weight, longest_prefix_first, most_used_key_first, static_key
from .request import GateStatus
from .tracked import Tracked

MAX_POLLS_PER_STEP = 256


class WaitingQueue:
    """`blocked`: some gate is not ready. `ready`: in arrival order, and in the policy's order where that is static."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._key = static_key(config.scheduling_policy)
        self._blocked: dict[str, Tracked] = {}
        self._by_arrival: list[Tracked] = []
        self.num_tokens = 0  # known tokens of all that wait
        self._by_policy: list[Tracked] | None = None
        if self._key is not None and self._key is not by_arrival:
            self._by_policy = []

    def __len__(self) -> int:
        return len(self._blocked) + len(self._by_arrival)

    @property
    def num_ready(self) -> int:
        return len(self._by_arrival)

    def __iter__(self) -> Iterator[Tracked]:
        yield from self._by_arrival
        yield from self._blocked.values()

    def push(self, request: Tracked) -> None:
        """Mutates. A request with open gates is blocked; a retracted one takes its old place by arrival."""
        self.num_tokens += len(request.known)
        if request.gates:
            self._blocked[request.request_id] = request
            return
        insort(self._by_arrival, request, key=by_arrival)
        if self._by_policy is not None and self._key is not None:
            insort(self._by_policy, request, key=self._key)

    def remove(self, request: Tracked) -> None:
        """Mutates."""
        self.num_tokens -= len(request.known)
        if self._blocked.pop(request.request_id, None) is not None:
            return
        _remove_sorted(self._by_arrival, request, by_arrival)
        if self._by_policy is not None and self._key is not None:
            _remove_sorted(self._by_policy, request, self._key)

    def sweep(self, now: float) -> list[tuple[Tracked, str]]:
        """Mutates: polls gates (some per step when very many wait) and moves requests that became ready. Returns
        those whose gate failed or timed out, removed from the queue, with the reason. Nothing is remembered beyond
        the request."""
        failed: list[tuple[Tracked, str]] = []
        for request in list(islice(self._blocked.values(), MAX_POLLS_PER_STEP)):
            self.remove(request)  # pushed again at the end, so that the next sweep polls others first
            error = _poll(request, now)
            if error is not None:
                failed.append((request, error))
            else:
                self.push(request)
        return failed

    def propose(
        self, now: float, refresh_match: Callable[[Tracked], None], running_keys: Counter[str]
    ) -> Iterator[Tracked]:
        """Ready requests in the order in which to try them; aged ones first. Do not push or remove while iterating
        (the caller collects what it admits)."""
        aged = 0
        while aged < len(self._by_arrival) and now - self._by_arrival[aged].arrival > self._config.ageing_seconds:
            aged += 1
        yield from self._by_arrival[:aged]
        if self._by_policy is None and self._key is None and len(self._by_arrival) <= self._config.long_queue:
            yield from self._look_around(self._by_arrival[aged:], refresh_match, running_keys)
            return
        limit = self._by_arrival[aged - 1].seq if aged else -1
        # the scan is bounded, so a bounded copy serves
        source = self._by_policy if self._by_policy is not None else self._by_arrival
        yield from (request for request in source[: self._config.max_scan + aged] if request.seq > limit)

    def _look_around(
        self, waiting: list[Tracked], refresh_match: Callable[[Tracked], None], running_keys: Counter[str]
    ) -> list[Tracked]:
        if self._config.scheduling_policy == "routing-key":
            return most_used_key_first(waiting, running_keys)
        for request in waiting:
            refresh_match(request)
        if self._config.scheduling_policy == "lpm":
            return longest_prefix_first(waiting)
        return depth_first_by_weight(waiting)


def _remove_sorted(queue: list[Tracked], request: Tracked, key: Callable[[Tracked], tuple[int, ...]]) -> None:
    index = bisect_left(queue, key(request), key=key)
    assert queue[index] is request
    del queue[index]


def _poll(request: Tracked, now: float) -> str | None:
    """Drop the gates that are ready; the error of the first that failed or timed out."""
    waiting = []
    for gate in request.gates:
        try:
            status = gate.poll()
        except Exception as error:  # a broken gate ends its own request only
            return f"{gate.name}: {error}"
        if status is GateStatus.FAILED:
            return f"{gate.name}: {gate.error()}"
        if status is GateStatus.PENDING:
            if gate.deadline is not None and now > gate.deadline:
                return f"{gate.name}: not ready by its deadline"
            waiting.append(gate)
    request.gates = waiting
    return None


def agree(statuses: list[GateStatus]) -> GateStatus:
    """What all ranks of a distributed run conclude: failed on any is failed, ready on all is ready."""
    if GateStatus.FAILED in statuses:
        return GateStatus.FAILED
    return GateStatus.READY if all(status is GateStatus.READY for status in statuses) else GateStatus.PENDING
