"""RowTable: ragged indices, blocks behind the window, stop tokens, and rows that change their owner."""

from itertools import product

import numpy as np

from hybrid.pools.rows import RowTable, ragged
from tests.pools.units import ids


def table(num_rows: int = 4, max_model_len: int = 40, block_size: int = 4) -> RowTable:
    return RowTable(num_rows, max_model_len, block_size)


def test_ragged() -> None:
    owner, value = ragged(ids(10, 20, 30, 40), ids(2, 0, 3, 1))
    assert owner.tolist() == [0, 0, 2, 2, 2, 3]
    assert value.tolist() == [10, 11, 30, 31, 32, 40]
    owner, value = ragged(ids(), ids())
    assert len(owner) == len(value) == 0


def test_blocks_behind_the_window_are_those_no_later_token_sees() -> None:
    """By brute force: token t sees t - width + 1 .. t, and the next token is at `processed`."""
    for width, block_size, processed, first in product((1, 2, 5, 8), (1, 3, 4), range(0, 25, 3), (0, 1, 2)):
        rows = table(num_rows=2, block_size=block_size)
        rows.num_processed[1] = processed
        rows.window_first[1] = first
        owners, counts = rows.behind_window(ids(0, 1), width)
        behind = [
            block
            for block in range(first, 40)
            if all((block + 1) * block_size <= t - width + 1 for t in range(processed, processed + 2))
        ]
        assert behind == list(range(first, first + len(behind)))
        assert (owners.tolist(), counts.tolist()) == (([1], [len(behind)]) if behind else ([], []))


def test_tables_of_a_row() -> None:
    rows = table()
    rows.full_table[2, :3] = [7, 8, 9]
    rows.window_table[2, :3] = [4, 5, 6]
    rows.num_blocks[2], rows.window_first[2] = 3, 1
    assert rows.full_blocks(2).tolist() == [7, 8, 9] and rows.window_blocks(2).tolist() == [5, 6]
    assert rows.blocks_for(ids(0, 1, 4, 5)).tolist() == [0, 1, 1, 2]


def test_stop_tokens_of_each_row() -> None:
    rows = table()
    rows.set_stop_ids(0, (5, 6))
    rows.set_stop_ids(1, tuple(range(10, 19)))  # more than any row had before
    assert rows.is_stop(ids(0, 1, 2), np.array([6, 18, 5], dtype=np.int32)).tolist() == [True, True, False]
    assert rows.is_stop(ids(0, 1, 2), np.array([10, 5, 0], dtype=np.int32)).tolist() == [False, False, False]
    rows.set_stop_ids(1, (3,))
    assert rows.is_stop(ids(1, 1), np.array([3, 18], dtype=np.int32)).tolist() == [True, False]


def test_a_cleared_row_shows_nothing_of_its_owner() -> None:
    rows, fresh = table(), table()
    for name in RowTable(1, 1, 1).__dict__:
        column = getattr(rows, name)
        if isinstance(column, np.ndarray) and name not in ("token_ids", "full_table", "window_table", "epoch"):
            column[1] = True if column.dtype == bool else 7
    rows.clear(1)
    for name in RowTable(1, 1, 1).__dict__:
        column = getattr(rows, name)
        if isinstance(column, np.ndarray) and name not in ("token_ids", "full_table", "window_table", "epoch"):
            assert np.array_equal(column[1], getattr(fresh, name)[1]), name
    assert rows.epoch.tolist() == [0, 1, 0, 0]
