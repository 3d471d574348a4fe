"""Retraction: a running request gives up all memory and waits to be recomputed. Who, and how it is taken back."""

from hybrid.pools.memory import Memory

from .leave import leave
from .reservation import OutputReservation
from .running import Running
from .stats import Counters
from .tracked import Tracked
from .waiting import WaitingQueue


class Retraction:
    """Acts between transactions only. What a victim has computed becomes a resume point, so it may still hit."""

    def __init__(
        self,
        memory: Memory,
        running: Running,
        waiting: WaitingQueue,
        reservation: OutputReservation,
        counters: Counters,
        force_every: int,
    ) -> None:
        self._memory = memory
        self._running = running
        self._waiting = waiting
        self._reservation = reservation
        self._counters = counters
        self._force_every = force_every
        self._forced_at = 0

    def victim(self, step_id: int) -> Tracked | None:
        """Who gives way: the least urgent priority, among those the latest admitted; never one that the plan of
        `step_id` holds. Pure."""
        table = self._memory.table
        candidates = (
            request
            for request in self._running.requests()
            if request.row is not None and table.last_step[request.row] != step_id
        )
        return max(candidates, key=_gives_way, default=None)

    def retract(self, request: Tracked) -> None:
        """Mutates: the request waits, at its old place by arrival."""
        self._counters.retractions += 1
        self._reservation.retracted()
        self.requeue(request, state_is_exact=True)

    def requeue(self, request: Tracked, state_is_exact: bool) -> None:
        """Mutates: back to the queue. state_is_exact False: the step that advanced its state came to nothing."""
        table, row = self._memory.table, request.row
        assert row is not None
        request.known = table.token_ids[row, : table.num_tokens[row]].copy()
        request.lost_tokens = int(min(table.num_processed[row], table.num_tokens[row]))
        request.retractions += 1
        leave(self._memory, self._running, request, state_is_exact)
        request.wanted, request.awaited, request.skips, request.match_version = [], [], 0, -1
        request.common.clear()
        request.waits_for = ""
        self._waiting.push(request)

    def force(self, step_id: int) -> None:
        """Mutates: the testing aid `force_retraction_every`. Never the last one running, so that the first gets on."""
        every = self._force_every
        if every and step_id % every == 0 and len(self._running) > 1 and self._forced_at != step_id:
            self._forced_at = step_id
            self.retract(max(self._running.requests(), key=_gives_way))


def _gives_way(request: Tracked) -> tuple[int, int]:
    """Larger gives way earlier: less urgent, then later admitted."""
    return request.new.priority, request.rank
