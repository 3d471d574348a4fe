"""UnitPool: six columns whose sum is the capacity, whatever happens to the units."""

import random
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from hybrid.pools.ledger import Ints, InvariantViolation, Shortage, UnitPool
from hybrid.pools.transaction import Claim, Transaction
from tests.pools.units import columns, ids, take


def pool(capacity: int = 10) -> UnitPool:
    return UnitPool("full attention", "block", capacity)


def test_a_unit_goes_through_every_column() -> None:
    blocks = pool()
    assert columns(blocks) == {"free": 10}
    with Transaction() as transaction:
        transaction.reserve(Claim.of(blocks, 3))
        assert columns(blocks) == {"free": 7, "reserved": 3}
        (units,) = transaction.commit()
    assert columns(blocks) == {"free": 7, "held": 3}
    blocks.publish(units)
    assert columns(blocks) == {"free": 7, "pinned": 3}
    blocks.release(units)
    assert columns(blocks) == {"free": 7, "cached": 3}
    blocks.share(units[:1])
    assert columns(blocks) == {"free": 7, "cached": 2, "pinned": 1}
    blocks.unpublish(units)
    assert columns(blocks) == {"free": 9, "held": 1}
    blocks.release(units[:1], until_step=4)
    assert columns(blocks) == {"free": 9, "pending": 1}
    blocks.settle(3)
    assert columns(blocks) == {"free": 9, "pending": 1}
    blocks.settle(4)
    assert columns(blocks) == {"free": 10}


def test_a_unit_is_free_after_its_last_user_and_its_last_entry() -> None:
    blocks = pool()
    units = take(blocks, 2)
    blocks.share(units)
    blocks.publish(units)
    blocks.publish(units)
    blocks.release(np.concatenate([units, units]))  # an id may appear several times
    blocks.unpublish(units)
    assert columns(blocks) == {"free": 8, "cached": 2}
    blocks.unpublish(units)
    assert columns(blocks) == {"free": 10}


def test_a_unit_that_a_step_touches_is_not_handed_out() -> None:
    """Also not by eviction, and also when the step only copies from it."""
    blocks = pool(2)
    units = take(blocks, 2)
    blocks.publish(units)
    blocks.release(units[:1])
    blocks.release(units[1:])
    blocks.touch_until(units[:1], step=7)
    assert (blocks.evictable(), blocks.obtainable()) == (1, 1)
    blocks.unpublish(units)
    assert columns(blocks) == {"free": 1, "pending": 1}
    assert blocks.shortage(2) == Shortage("full attention", "block", 2, 1, 2, never=False)
    blocks.settle(7)
    assert columns(blocks) == {"free": 2}


def test_pending_units_return_in_the_order_of_their_steps() -> None:
    blocks = pool(3)
    units = take(blocks, 3)
    for unit, step in zip(units, (9, 5, 7), strict=True):
        blocks.release(ids(unit), until_step=step)
    for step, free in ((4, 0), (5, 1), (6, 1), (7, 2), (9, 3)):
        blocks.settle(step)
        assert columns(blocks).get("free", 0) == free


def test_shortages_say_what_is_needed_and_there() -> None:
    blocks = pool(4)
    take(blocks, 3)
    assert blocks.shortage(1) is None
    short = blocks.shortage(2)
    assert short is not None and (short.needed, short.available, short.never) == (2, 1, False)
    assert str(short) == "the full attention pool has 1 of 4 blocks available and 2 are needed"
    never = blocks.shortage(5)
    assert never is not None and never.never
    assert str(never) == "the full attention pool has 4 blocks in all and 5 are needed"


def test_what_must_not_happen_names_pool_and_unit() -> None:
    blocks = pool()
    (unit,) = take(blocks, 1).tolist()
    wrong: list[tuple[Callable[[Ints], None], str]] = [
        (blocks.share, "was given an owner"),
        (blocks.publish, "was published"),
        (blocks.release, "was freed twice"),
        (blocks.unpublish, "was forgotten twice"),
    ]
    for method, message in wrong:
        with pytest.raises(InvariantViolation, match=message):
            method(ids(7))
        assert columns(blocks) == {"free": 9, "held": 1}, "nothing changed"
    blocks.refs[8] = 1
    with pytest.raises(InvariantViolation, match="full attention: block 8 is free but has an owner"):
        blocks.check()
    blocks.refs[8] = blocks.refs[unit] = 0
    with pytest.raises(InvariantViolation, match=r"full attention: Ledger.*'leaked': 1"):
        blocks.check()
    with pytest.raises(ValueError, match="capacity -1 is negative"):
        pool(-1)


def test_check_finds_a_block_that_is_free_twice_and_a_free_block_with_an_owner() -> None:
    blocks = pool()
    blocks._push(ids(9))
    blocks._num_free -= 1
    blocks._stack[0] = blocks._stack[1]
    with pytest.raises(InvariantViolation, match="block 8 was freed twice"):
        blocks.check()
    blocks = pool()
    take(blocks, 2)
    blocks._stack[0] = 0
    with pytest.raises(InvariantViolation, match="block 0 is free but has an owner"):
        blocks.check()


@pytest.mark.parametrize("seed", range(8))
def test_random_events_keep_the_sum(seed: int) -> None:
    """Against a plain model: a list of users and entries per unit."""
    dice, blocks = random.Random(seed), pool(6)
    users: list[int] = []
    entries: list[int] = []
    for step in count(1):
        match dice.randrange(7):
            case 0 if blocks.shortage(1) is None and blocks.num_free:
                users += take(blocks, 1).tolist()
            case 1 if users:
                unit = users.pop(dice.randrange(len(users)))
                blocks.release(ids(unit), until_step=step + dice.choice((-1, 0, 2)))
            case 2 if users or entries:
                entries.append(dice.choice(users + entries))
                blocks.publish(ids(entries[-1]))
            case 3 if entries:
                blocks.unpublish(ids(entries.pop(dice.randrange(len(entries)))))
            case 4 if entries:
                users.append(dice.choice(entries))
                blocks.share(ids(users[-1]))
            case 5 if entries:
                blocks.touch_until(ids(dice.choice(entries)), step + 1)
            case 6:
                blocks.settle(step)
        there = columns(blocks)
        assert there.get("held", 0) == len(set(users) - set(entries))
        assert there.get("pinned", 0) == len(set(users) & set(entries))
        assert there.get("cached", 0) == len(set(entries) - set(users))
        if step == 400:
            return
