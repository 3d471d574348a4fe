"""DeviceTables: block tables and state slots of all rows on the device, kept up by the plans' deltas.

What graphs read instead of tables that are uploaded for every step. Knows plans; not what runs.
"""

import numpy as np
import torch

from hybrid.models.ops.transfer import upload
from hybrid.pools.sizing import PoolSizes
from hybrid.scheduler.plan import BlockDelta, StepPlan

from .caches import Caches
from .row_mirror import RowMirror

NOWHERE = -1


class DeviceTables:
    """Lines as in the row mirror's tables, and one behind them that is nobody's, as `DecodeContext` wants it."""

    def __init__(self, mirror: RowMirror, caches: Caches, sizes: PoolSizes, device: torch.device) -> None:
        lines, blocks = sizes.num_rows + 1, mirror.full_table.shape[1]

        def table(null_block: int) -> torch.Tensor:
            made = torch.zeros((lines, blocks), dtype=torch.int32, device=device)
            made[-1] = null_block
            return made

        self.full = table(sizes.num_full_blocks) if caches.has_full else None
        self.window = table(sizes.num_window_blocks) if caches.has_window else None
        self.state_slots = torch.full((lines,), NOWHERE, dtype=torch.int64, device=device)

    @property
    def nobody(self) -> int:
        return len(self.state_slots) - 1

    def apply(self, plan: StepPlan) -> None:
        """Mutates: what the plan changes. Every plan, also one that no graph runs."""
        for table, delta in ((self.full, plan.full_blocks), (self.window, plan.window_blocks)):
            if table is not None and len(delta.rows):
                _put(table, delta)
        if plan.new_rows:
            rows = np.array([new.row for new in plan.new_rows], dtype=np.int64)
            slots = np.array([new.state_slot for new in plan.new_rows], dtype=np.int64)
            index, values = upload(np.stack((rows, slots)), self.state_slots.device)
            self.state_slots.index_copy_(0, index, values)


def _put(table: torch.Tensor, delta: BlockDelta) -> None:
    """Mutates the table."""
    rows, indices, blocks = upload(np.stack((delta.rows, delta.indices, delta.blocks)), table.device)
    table.index_put_((rows, indices), blocks.int())
