"""Transaction: reserves in all pools or in none.

    with Transaction() as transaction:
        transaction.pin(full, matched_blocks)                       # lock a match ...
        shortages = transaction.reserve(Claim(rows, 1), Claim(full, 12))  # ... then count again
        if shortages:
            return shortages                                        # leaving puts every ledger back as it was
        row, blocks = transaction.commit()

Evictions happen in `commit` only: a refused transaction has evicted nothing.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .ledger import Ints, Shortage, UnitPool


@dataclass(frozen=True, slots=True)
class Claim:
    """`charge` units of `pool`, of which `take` are handed out at commit; the rest is a promise (see WindowPool)."""

    pool: UnitPool
    charge: int
    take: int

    @classmethod
    def of(cls, pool: UnitPool, units: int) -> Self:
        return cls(pool, units, units)


class Transaction:
    """One attempt. Pins and reservations last until `commit`, or are undone on leaving the `with` block."""

    def __init__(self) -> None:
        self._pins: list[tuple[UnitPool, Ints]] = []
        self._claims: list[Claim] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for claim in self._claims:
            claim.pool.unclaim(claim.charge, claim.take)
        for pool, ids in reversed(self._pins):
            pool.release(ids)
        self._claims.clear()
        self._pins.clear()

    def pin(self, pool: UnitPool, ids: Ints) -> None:
        """Mutates: these units get a running user, so that nothing evicts them. The user stays after `commit`."""
        pool.share(ids)
        self._pins.append((pool, ids))

    def unpin(self, pool: UnitPool, ids: Ints) -> None:
        """Mutates: undo one `pin` of exactly these units."""
        index = next(i for i, (owner, pinned) in enumerate(self._pins) if owner is pool and pinned is ids)
        del self._pins[index]
        pool.release(ids)

    def reserve(self, *claims: Claim) -> tuple[Shortage, ...]:
        """Reserve all claims (one per pool) or none; the shortages of every pool that refused, () if all granted."""
        refused = (claim.pool.shortage(claim.charge, claim.take) for claim in claims)
        shortages = tuple(shortage for shortage in refused if shortage is not None)
        if not shortages:
            for claim in claims:
                claim.pool.claim(claim.charge, claim.take)
                self._claims.append(claim)
        return shortages

    def commit(self) -> list[Ints]:
        """Make the reservations real: the units of each claim, in the order in which they were reserved."""
        claims, self._claims = self._claims, []
        self._pins.clear()
        return [claim.pool.settle_claim(claim.charge, claim.take) for claim in claims]
