"""Sliding-window quotas against brute force, and the promises of the pool."""

from itertools import product

from hybrid.pools.transaction import Claim, Transaction
from hybrid.pools.window import WindowPool, unsplit_window, window_quota
from tests.pools.units import columns, take


def most_blocks(first: int, last: int, width: int, block_size: int, max_tokens: int, ahead: int) -> int:
    """The most blocks in use while a request whose committed progress is first..last has `ahead` tokens more computed:
    from the block of the first token that position `progress` sees to that of the last token."""
    return max(
        min(progress + ahead, max_tokens - 1) // block_size - max(0, progress - width + 1) // block_size + 1
        for progress in range(first, last + 1)
    )


def test_the_quota_bounds_a_window_and_is_reached() -> None:
    for width, block_size, lookahead, max_tokens in product(
        range(1, 8), range(1, 6), range(4), (1, 2, 3, 5, 8, 13, 40)
    ):
        quota = window_quota(width, block_size, lookahead, max_tokens)
        most = most_blocks(0, max_tokens - 1, width, block_size, max_tokens, lookahead)
        assert most <= quota, (width, block_size, lookahead, max_tokens)
        if max_tokens >= width + lookahead + block_size:
            assert most == quota, (width, block_size, lookahead, max_tokens)


def test_an_unsplit_image_needs_its_tokens_and_the_window_before() -> None:
    for width, block_size, image, max_tokens in product(range(1, 8), range(1, 6), range(1, 9), (9, 13, 40)):
        bound = unsplit_window(width, block_size, image, max_tokens)
        most = most_blocks(0, max_tokens - image, width, block_size, max_tokens, image - 1)
        assert most <= bound, (width, block_size, image, max_tokens)
        if max_tokens >= width + image + block_size:
            assert most == bound, (width, block_size, image, max_tokens)


def test_a_promise_is_kept_whatever_is_handed_out() -> None:
    pool = WindowPool("sliding window", "block", 10)
    first = take(pool, 1, charge=4)
    take(pool, 2, charge=4)
    assert (pool.obtainable(), pool.available()) == (7, 2)
    with Transaction() as transaction:
        (short,) = transaction.reserve(Claim(pool, charge=3, take=1))
        assert (short.needed, short.available, short.never) == (3, 2, False)
    grown = take(pool, 3, charge=0)  # inside the promise
    assert pool.available() == 2 and columns(pool) == {"free": 4, "held": 6}
    pool.release(first)
    pool.release(grown)
    pool.uncharge(4)
    assert pool.available() == 6


def test_blocks_that_a_step_still_reads_are_not_promised() -> None:
    pool = WindowPool("sliding window", "block", 6)
    units = take(pool, 4, charge=4)
    pool.publish(units[:2])
    pool.release(units, until_step=3)
    pool.uncharge(4)
    assert columns(pool) == {"free": 2, "cached": 2, "pending": 2}
    assert (pool.available(), pool.obtainable()) == (2, 2)
    pool.settle(3)
    assert (pool.available(), pool.obtainable()) == (6, 6)


def test_claims_of_an_open_transaction_are_not_promised_again() -> None:
    pool = WindowPool("sliding window", "block", 6)
    with Transaction() as transaction:
        assert transaction.reserve(Claim(pool, charge=4, take=1)) == ()
        assert pool.available() == 2
        assert len(transaction.reserve(Claim(pool, charge=3, take=0))) == 1
    assert (pool.available(), pool.charged) == (6, 0)
