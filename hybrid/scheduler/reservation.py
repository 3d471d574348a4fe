"""OutputReservation: which part of its permitted output a request is expected to use. Adapts, within bounds."""

import numpy as np

from hybrid.pools.ledger import Ints
from hybrid.pools.rows import RowTable

MIN_RATIO = 0.1
MAX_RATIO = 1.0
LEARNING_RATE = 0.05
RETRACTION_STEP = 0.1


class OutputReservation:
    """`ratio` in [MIN_RATIO, MAX_RATIO]: finished requests pull it towards what they used, retractions push it up."""

    def __init__(self, initial_ratio: float) -> None:
        self.ratio = min(MAX_RATIO, max(MIN_RATIO, initial_ratio))

    def finished(self, num_output_tokens: int, max_output_tokens: int) -> None:
        """Mutates."""
        used = num_output_tokens / max(1, max_output_tokens)
        self.ratio = min(MAX_RATIO, max(MIN_RATIO, self.ratio + LEARNING_RATE * (used - self.ratio)))

    def retracted(self) -> None:
        """Mutates: the estimate failed."""
        self.ratio = min(MAX_RATIO, self.ratio + RETRACTION_STEP)

    def expected_tokens(self, num_tokens: int, max_total_tokens: int) -> int:
        """The length at which a request with `num_tokens` known tokens is expected to end. Pure."""
        return num_tokens + int(np.ceil(self.ratio * (max_total_tokens - num_tokens)))

    def future_blocks(self, table: RowTable, rows: Ints) -> int:
        """Blocks that the running `rows` are still expected to take. Pure."""
        known = table.num_tokens[rows]
        expected = known + np.ceil(self.ratio * (table.max_total_tokens[rows] - known)).astype(np.int64)
        return int(np.maximum(table.blocks_for(expected) - table.num_blocks[rows], 0).sum())
