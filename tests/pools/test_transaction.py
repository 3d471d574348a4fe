"""Transaction: all pools or none, and nothing is evicted for a request that is refused."""

import pytest

from hybrid.pools.keyed import KeyedPool
from hybrid.pools.ledger import UnitPool
from hybrid.pools.transaction import Claim, Transaction
from hybrid.pools.window import WindowPool
from tests.pools.units import columns, take


def two() -> tuple[UnitPool, WindowPool]:
    return UnitPool("full attention", "block", 8), WindowPool("sliding window", "block", 4)


def test_commit_hands_out_in_the_order_of_the_claims() -> None:
    full, window = two()
    with Transaction() as transaction:
        assert transaction.reserve(Claim.of(full, 3)) == ()
        assert transaction.reserve(Claim(window, charge=3, take=1)) == ()
        blocks, slots = transaction.commit()
    assert (len(blocks), len(slots), window.charged) == (3, 1, 3)
    assert columns(full) == {"free": 5, "held": 3}
    assert columns(window) == {"free": 3, "held": 1}


@pytest.mark.parametrize("order", [0, 1])
def test_a_refusal_by_one_pool_reserves_in_none(order: int) -> None:
    full, window = two()
    claims = [Claim.of(full, 3), Claim.of(window, 5)]
    with Transaction() as transaction:
        shortages = transaction.reserve(*(claims if order == 0 else claims[::-1]))
        assert [(short.pool, short.needed, short.available) for short in shortages] == [("sliding window", 5, 4)]
        assert columns(full) == {"free": 8} and columns(window) == {"free": 4}


def test_every_refusing_pool_is_named() -> None:
    full, window = two()
    with Transaction() as transaction:
        assert [short.pool for short in transaction.reserve(Claim.of(full, 9), Claim.of(window, 5))] == [
            "full attention",
            "sliding window",
        ]


@pytest.mark.parametrize("raises", [False, True])
def test_leaving_without_commit_puts_everything_back(raises: bool) -> None:
    full, window = two()
    cached = take(full, 2)
    full.publish(cached)
    full.release(cached)
    before = full.ledger(), window.ledger(), window.charged

    def attempt() -> None:
        with Transaction() as transaction:
            transaction.pin(full, cached)
            transaction.reserve(Claim.of(full, 4), Claim(window, charge=4, take=2))
            assert columns(full) == {"free": 2, "reserved": 4, "pinned": 2}
            assert window.available() == 0
            if raises:
                raise KeyError("midway")

    if raises:
        with pytest.raises(KeyError):
            attempt()
    else:
        attempt()
    assert (full.ledger(), window.ledger(), window.charged) == before


def test_a_pin_counts_before_the_claim() -> None:
    """What was evictable may now be pinned: count again."""
    full, _ = two()
    cached = take(full, 8)
    full.publish(cached)
    full.release(cached)
    with Transaction() as transaction:
        assert transaction.reserve(Claim.of(full, 8)) == ()
    with Transaction() as transaction:
        transaction.pin(full, cached[:3])
        (short,) = transaction.reserve(Claim.of(full, 6))
        assert (short.needed, short.available) == (6, 5)
    assert columns(full) == {"cached": 8}


def test_unpin_undoes_one_pin() -> None:
    full, _ = two()
    first, second = take(full, 1), take(full, 1)
    with Transaction() as transaction:
        transaction.pin(full, first)
        transaction.pin(full, second)
        transaction.unpin(full, first)
        assert (full.refs[first[0]], full.refs[second[0]]) == (1, 2)
        transaction.commit()
    assert (full.refs[first[0]], full.refs[second[0]]) == (1, 2), "a pin stays after the commit"


def test_only_a_commit_evicts() -> None:
    images: KeyedPool[str] = KeyedPool("encoder", "token", 4)
    units = take(images, 3)
    images.insert("a", units)
    images.confirm("a", units)
    images.leave("a", units)
    with Transaction() as transaction:
        assert transaction.reserve(Claim.of(images, 2)) == ()
        assert columns(images) == {"reserved": 2, "cached": 2}  # 1 of the free, 1 of the cached: not decided which
    assert images.get("a") is units
    take(images, 2)
    assert images.get("a") is None and columns(images) == {"free": 2, "held": 2}
