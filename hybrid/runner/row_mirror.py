"""RowMirror: what the runner itself knows of every row, kept up by plan deltas and by the tokens it samples.

So a plan can run before the result of the one before was committed, and before it is known: in place of tokens that the
device alone knows there is UNKNOWN until `append`. Host tables; knows neither torch nor requests.
"""

import numpy as np
from numpy.typing import NDArray

from hybrid.models.image_positions import ImagePositions
from hybrid.pools.sizing import PoolSizes
from hybrid.scheduler.plan import BlockDelta, Bools, Ints, NewRow, StepPlan, TokenIds

from .sampling_columns import SamplingColumns

UNKNOWN = -1  # a token that was sampled and has not arrived on the host


class RowMirror:
    """Tables over rows. token_ids[row, :num_tokens[row]]: prompt and sampled tokens, also uncommitted, UNKNOWN ones."""

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
        # Of rows with images, for ropes of three positions: what they are, the end of the last image, the shift behind.
        self.image_positions: list[ImagePositions | None] = [None] * rows
        self.images_end: Ints = np.zeros(rows, dtype=np.int64)  # 0: no images
        self.image_shift: Ints = np.zeros(rows, dtype=np.int64)
        self.request_ids: NDArray[np.object_] = np.full(rows, "", dtype=object)
        self.num_starts: Ints = np.zeros(rows, dtype=np.int64)  # owners that the row has had
        self.sampling = SamplingColumns(rows)

    def start_row(self, new: NewRow, image_positions: ImagePositions | None = None) -> None:
        """Mutates: the row has a new owner. Its sampling columns are set by the caller, who knows the request.

        image_positions: of the request's images, where ropes know three positions per token.
        """
        known = len(new.token_ids)
        assert 0 < known <= self.token_ids.shape[1], f"{new.request_id} brings {known} tokens"
        self.token_ids[new.row, :known] = new.token_ids
        self.num_tokens[new.row] = known
        self.num_prompt_tokens[new.row] = new.num_prompt_tokens
        self.state_slot[new.row] = new.state_slot
        self.lora_id[new.row] = new.lora_id
        self.image_positions[new.row] = image_positions
        self.images_end[new.row] = 0 if image_positions is None else image_positions.end
        self.image_shift[new.row] = 0 if image_positions is None else image_positions.shift
        self.request_ids[new.row] = new.request_id
        self.num_starts[new.row] += 1

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

    def expect(self, rows: Ints, positions: Ints) -> None:
        """Mutates: each row has a token at its position that nobody knows yet."""
        self.token_ids[rows, positions] = UNKNOWN
        self.num_tokens[rows] = positions + 1

    def append(self, rows: Ints, positions: Ints, token_ids: TokenIds, taken: Bools) -> None:
        """Mutates: row i of the sampling rows got the tokens token_ids[i, taken[i]] from positions[i] on. It may have
        got later ones already that are UNKNOWN."""
        counts = taken.sum(axis=1)
        if taken.shape[1] == 1:
            self.token_ids[rows, positions] = token_ids[:, 0]
        else:
            owner, column = np.nonzero(taken)
            self.token_ids[rows[owner], positions[owner] + column] = token_ids[owner, column]
        self.num_tokens[rows] = np.maximum(self.num_tokens[rows], positions + counts)


def _apply(table: Ints, delta: BlockDelta) -> None:
    if len(delta.rows):
        table[delta.rows, delta.indices] = delta.blocks
