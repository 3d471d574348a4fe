"""RowMirror: what the runner itself knows of every row, kept up by plan deltas and by the tokens it samples.

So a plan can run before the result of the one before was committed. Host tables; knows neither torch nor requests.
"""

import numpy as np

from hybrid.pools.sizing import PoolSizes
from hybrid.scheduler.plan import BlockDelta, Bools, Ints, NewRow, StepPlan, TokenIds

from .sampling_columns import SamplingColumns


class RowMirror:
    """Tables over rows. token_ids[row, :num_tokens[row]] are known: prompt, sampled tokens, also uncommitted ones."""

    def __init__(self, sizes: PoolSizes) -> None:
        rows, positions = sizes.num_rows, sizes.max_model_len + sizes.lookahead
        blocks = -(-positions // sizes.block_size) + 1
        self.token_ids: TokenIds = np.zeros((rows, positions + 1), dtype=np.int32)
        self.num_tokens: Ints = np.zeros(rows, dtype=np.int64)
        self.num_prompt_tokens: Ints = np.zeros(rows, dtype=np.int64)
        self.state_slot: Ints = np.zeros(rows, dtype=np.int64)
        self.lora_id: Ints = np.zeros(rows, dtype=np.int64)  # 0: the base model
        self.full_table: Ints = np.zeros((rows, blocks), dtype=np.int64)
        self.window_table: Ints = np.zeros((rows, blocks), dtype=np.int64)
        self.request_ids: list[str | None] = [None] * rows
        self.sampling = SamplingColumns(rows)

    def start_row(self, new: NewRow) -> None:
        """Mutates: the row has a new owner. Its sampling columns are set by the caller, who knows the request."""
        known = len(new.token_ids)
        assert 0 < known <= self.token_ids.shape[1], f"{new.request_id} brings {known} tokens"
        self.token_ids[new.row, :known] = new.token_ids
        self.num_tokens[new.row] = known
        self.num_prompt_tokens[new.row] = new.num_prompt_tokens
        self.state_slot[new.row] = new.state_slot
        self.lora_id[new.row] = new.lora_id
        self.request_ids[new.row] = new.request_id

    def apply_deltas(self, plan: StepPlan) -> None:
        """Mutates: new block-table entries, and draft tokens at their positions behind the known tokens."""
        _apply(self.full_table, plan.full_blocks)
        _apply(self.window_table, plan.window_blocks)
        if len(plan.draft_token_ids):
            drafts = plan.num_draft_tokens
            owner = np.repeat(np.arange(len(drafts)), drafts)
            ends = plan.num_computed_tokens + plan.num_scheduled_tokens
            within = np.arange(len(owner)) - (np.cumsum(drafts) - drafts)[owner]
            self.token_ids[plan.rows[owner], (ends - drafts)[owner] + within] = plan.draft_token_ids
        known = plan.num_computed_tokens + plan.num_scheduled_tokens - plan.num_draft_tokens
        assert (known <= self.num_tokens[plan.rows]).all(), "the plan schedules tokens that nobody has sampled yet"

    def append(self, rows: Ints, positions: Ints, token_ids: TokenIds, taken: Bools) -> None:
        """Mutates: row i of the sampling rows got the tokens token_ids[i, taken[i]] from positions[i] on."""
        counts = taken.sum(axis=1)
        if taken.shape[1] == 1:
            self.token_ids[rows, positions] = token_ids[:, 0]
        else:
            owner, column = np.nonzero(taken)
            self.token_ids[rows[owner], positions[owner] + column] = token_ids[owner, column]
        self.num_tokens[rows] = positions + counts


def _apply(table: Ints, delta: BlockDelta) -> None:
    if len(delta.rows):
        table[delta.rows, delta.indices] = delta.blocks
