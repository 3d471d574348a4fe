"""KeyedPool: images and adapters, shared by key, cached after use, least recently used evicted first."""

import pytest

from hybrid.pools.keyed import KeyedPool
from hybrid.pools.ledger import Ints
from tests.pools.units import columns, take


def pool(capacity: int = 6) -> KeyedPool[str]:
    return KeyedPool("encoder", "token", capacity)


def put(images: KeyedPool[str], key: str, count: int, confirmed: bool = True) -> Ints:
    """An entry with one user."""
    units = take(images, count)
    images.insert(key, units)
    if confirmed:
        images.confirm(key, units)
    return units


def test_an_entry_is_shared_and_outlives_its_users() -> None:
    images = pool()
    units = put(images, "a", 4)
    images.share(units)
    images.leave("a", units)
    assert columns(images) == {"free": 2, "pinned": 4}
    images.leave("a", units)
    assert columns(images) == {"free": 2, "cached": 4}
    assert images.get("a") is units and images.get("b") is None


def test_the_least_recently_used_goes_first_and_only_as_many_as_needed() -> None:
    images = pool()
    for key in "abc":
        images.leave(key, put(images, key, 2))
    images.use("a")
    take(images, 1)
    assert [key for key in "abc" if images.get(key) is not None] == ["a", "c"]
    assert columns(images) == {"free": 1, "held": 1, "cached": 4}


def test_what_is_in_use_or_read_by_a_step_is_not_evicted() -> None:
    images = pool()
    used, read = put(images, "used", 2), put(images, "read", 2)
    images.leave("read", read, until_step=5)
    images.leave("idle", put(images, "idle", 2))
    assert images.obtainable() == 2
    assert images.shortage(3) is not None
    take(images, 2)
    assert images.get("used") is used and images.get("read") is read and images.get("idle") is None
    images.settle(5)
    assert images.obtainable() == 2


def test_an_unconfirmed_entry_does_not_outlive_its_users() -> None:
    """The step that fills it is still in flight, and nobody is left who would notice that it failed."""
    images = pool()
    units = put(images, "a", 4, confirmed=False)
    images.leave("a", units, until_step=1)
    assert images.get("a") is None and columns(images) == {"free": 2, "pending": 4}
    images.confirm("a", units)  # the result comes all the same
    assert images.get("a") is None
    images.settle(1)
    assert columns(images) == {"free": 6}


def test_a_late_confirmation_does_not_touch_a_newer_entry() -> None:
    images = pool()
    old = put(images, "a", 2, confirmed=False)
    images.leave("a", old, until_step=1)
    new = put(images, "a", 2, confirmed=False)
    images.confirm("a", old)
    assert not images.is_confirmed("a")
    images.confirm("a", new)
    images.confirm("a", new)  # once is enough
    assert images.is_confirmed("a") and columns(images) == {"free": 2, "pinned": 2, "pending": 2}


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_forgotten_entry_goes_with_its_last_user(confirmed: bool) -> None:
    images = pool()
    units = put(images, "a", 2, confirmed)
    images.share(units)
    images.forget("a")
    images.forget("a")  # forgetting what is not there changes nothing
    assert images.get("a") is None and not images.is_confirmed("a")
    assert columns(images) == {"free": 4, "held": 2}
    put(images, "a", 2)
    images.leave("a", units)
    images.leave("a", units)
    assert columns(images) == {"free": 4, "pinned": 2}


def test_forgetting_what_is_idle_leaves_what_is_used() -> None:
    images = pool()
    used = put(images, "used", 2)
    images.leave("idle", put(images, "idle", 2))
    images.leave("read", put(images, "read", 2), until_step=3)
    images.forget_idle()
    assert [key for key in ("used", "idle", "read") if images.get(key) is not None] == ["used"]
    assert columns(images) == {"free": 2, "pinned": 2, "pending": 2}
    images.leave("used", used)


def test_a_key_is_inserted_once() -> None:
    images = pool()
    put(images, "a", 2)
    with pytest.raises(AssertionError, match="'a' is there already"):
        images.insert("a", take(images, 2))
