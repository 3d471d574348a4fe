"""RowTable: the running requests as numpy columns over request rows. The scheduler's only table.

Growth, commit and stop tests of hundreds of decoding requests are a handful of vector operations on these columns.
This file knows positions and blocks; it does not know why a request runs or stops.
"""

import numpy as np
from numpy.typing import NDArray

from .ledger import Ints

NO_STOP_TOKEN = -1  # fills unused places of `stop_ids`; no vocabulary has it


def ragged(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Indices of a ragged batch: (owner [sum(counts)], value [sum(counts)]) with value = starts[owner] + 0, 1, ..."""
    owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    first = np.cumsum(counts) - counts
    return owner, np.arange(len(owner), dtype=np.int64) - first[owner] + starts[owner]


class RowTable:
    """Columns over `num_rows` rows. Lengths and positions in tokens, blocks by logical index (position // block_size).

    num_tokens    known tokens: prompt plus committed output
    num_computed  optimistic progress: what plans so far will have computed once they all succeed
    num_processed committed progress: what processed results have computed
    placeholders  sampled tokens in flight, known to the runner and not yet to us
    num_blocks    logical blocks allocated, the same for full and window tables
    window_first  first logical block that the window table still holds
    epoch         counts the owners of a row; a result for an older epoch is dropped
    """

    def __init__(self, num_rows: int, max_model_len: int, block_size: int, lookahead: int = 0) -> None:
        width = -(-(max_model_len + lookahead) // block_size) + 1
        self.block_size = block_size
        self.token_ids = np.zeros((num_rows, max_model_len + lookahead + 1), dtype=np.int32)
        self.full_table = np.zeros((num_rows, width), dtype=np.int64)
        self.window_table = np.zeros((num_rows, width), dtype=np.int64)
        self.request_ids = np.full(num_rows, None, dtype=object)
        self.stop_ids = np.full((num_rows, 4), NO_STOP_TOKEN, dtype=np.int32)
        self.num_stop_columns = 1  # the most that any request so far has used

        def column() -> Ints:
            return np.zeros(num_rows, dtype=np.int64)

        self.num_tokens = column()
        self.num_prompt_tokens = column()
        self.min_tokens = column()
        self.num_computed = column()
        self.num_processed = column()
        self.placeholders = column()
        self.num_drafts = column()
        self.drafts_in_flight = column()
        self.max_total_tokens = column()
        self.num_blocks = column()
        self.window_first = column()
        self.window_quota = column()
        self.window_charge = column()
        self.state_slot = column()
        self.last_step = column()
        self.epoch = column()
        self.live = np.zeros(num_rows, dtype=np.bool_)
        self.needs_grammar = np.zeros(num_rows, dtype=np.bool_)

    def clear(self, row: int) -> None:
        """Mutates: the row has a new, empty owner."""
        for column in (
            self.num_tokens, self.num_prompt_tokens, self.min_tokens, self.num_computed, self.num_processed,
            self.placeholders, self.num_drafts, self.drafts_in_flight, self.max_total_tokens, self.num_blocks,
            self.window_first, self.window_quota, self.window_charge, self.state_slot, self.last_step,
        ):  # fmt: skip
            column[row] = 0
        self.stop_ids[row] = NO_STOP_TOKEN
        self.request_ids[row] = None
        self.needs_grammar[row] = False
        self.live[row] = False
        self.epoch[row] += 1

    def set_stop_ids(self, row: int, stop_ids: tuple[int, ...]) -> None:
        """Mutates; widens the column when a request brings more stop tokens than any before."""
        if len(stop_ids) > self.stop_ids.shape[1]:
            wide = np.full((len(self.stop_ids), 2 * len(stop_ids)), NO_STOP_TOKEN, dtype=np.int32)
            wide[:, : self.stop_ids.shape[1]] = self.stop_ids
            self.stop_ids = wide
        self.num_stop_columns = max(self.num_stop_columns, len(stop_ids))
        self.stop_ids[row] = NO_STOP_TOKEN
        self.stop_ids[row, : len(stop_ids)] = stop_ids

    def blocks_for(self, num_tokens: Ints) -> Ints:
        return (num_tokens + self.block_size - 1) // self.block_size

    def window_blocks(self, row: int) -> Ints:
        return self.window_table[row, self.window_first[row] : self.num_blocks[row]]

    def full_blocks(self, row: int) -> Ints:
        return self.full_table[row, : self.num_blocks[row]]

    def behind_window(self, rows: Ints, sliding_window: int) -> tuple[Ints, Ints]:
        """Those of `rows` with blocks that no later token sees, by committed progress, and how many each: ([n], [n]).
        The blocks are those of logical index window_first on. Pure."""
        first_seen = np.maximum(self.num_processed[rows] - sliding_window + 1, 0) // self.block_size
        counts = first_seen - self.window_first[rows]
        some = counts > 0
        return (rows[some], counts[some]) if some.any() else (rows[:0], rows[:0])

    def is_stop(self, rows: Ints, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of `tokens` [n] is a stop token of its row, min_tokens not considered. Pure."""
        if self.num_stop_columns == 1:  # the usual case, and several times cheaper
            hits: NDArray[np.bool_] = self.stop_ids[rows, 0] == tokens
        else:
            hits = (self.stop_ids[rows, : self.num_stop_columns] == tokens[:, None]).any(axis=1)
        return hits
