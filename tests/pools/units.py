"""What the pool tests share."""

import numpy as np

from hybrid.pools.ledger import Ints, Ledger, UnitPool
from hybrid.pools.transaction import Claim, Transaction


def ids(*units: int) -> Ints:
    return np.array(units, dtype=np.int64)


def take(pool: UnitPool, count: int, charge: int | None = None) -> Ints:
    """`count` units with one user each, granted by a transaction of their own."""
    with Transaction() as transaction:
        assert not transaction.reserve(Claim(pool, count if charge is None else charge, count))
        (units,) = transaction.commit()
    return units


def columns(pool: UnitPool) -> dict[str, int]:
    """The columns that are not zero. Checks the pool on the way."""
    pool.check()
    ledger: Ledger = pool.ledger()
    assert ledger.total == pool.capacity
    names = ("free", "reserved", "held", "cached", "pinned", "pending")
    return {name: getattr(ledger, name) for name in names if getattr(ledger, name)}
