"""Suspects: whose fault is a failed step? A batch fails as a whole; only one request in it may be to blame.

After a failure that names nobody, every request of the plan is suspect until it has got past the point where it
failed, and a plan holds at most one suspect: if it fails again, that one is to blame. So a request that breaks every
step it is in ends alone, and the others lose time, not their answers.
"""

from collections.abc import Collection

from hybrid.pools.rows import RowTable

from .tracked import Tracked


class Suspects:
    """The requests under suspicion, and how often each was to blame."""

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._until: dict[Tracked, int] = {}  # suspect -> computed tokens that clear it

    def blame(self, failed: Collection[Tracked], named: Collection[str], table: RowTable) -> list[Tracked]:
        """Mutates: a plan with these running requests failed; `named` are request ids that the error blames. Returns
        those to be ended; the others may be recomputed."""
        if culprits := [request for request in failed if request.request_id in named]:
            return culprits
        suspects = [request for request in failed if request in self._until]
        blamed = suspects or (list(failed) if len(failed) == 1 else [])
        for request in blamed:
            request.failures += 1
        for request in suspects or failed:
            assert request.row is not None
            self._until[request] = max(self._until.get(request, 0), int(table.num_computed[request.row]))
        return [request for request in blamed if request.failures >= self._max_failures]

    def may_join(self, request: Tracked) -> bool:
        """Whether the request may run now: an innocent always, a suspect only where no other suspect runs. Pure."""
        return request not in self._until or all(suspect.row is None for suspect in self._until)

    def clear(self, table: RowTable) -> None:
        """Mutates: who got past its point of failure is innocent."""
        for request in [r for r in self._until if r.row is not None and table.num_processed[r.row] >= self._until[r]]:
            del self._until[request]

    def forget(self, request: Tracked) -> None:
        """Mutates: the request has ended."""
        self._until.pop(request, None)
