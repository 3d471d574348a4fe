"""PlainTables: one batch as kernels read it that know neither snapshots nor rows that start from zeros beside others
that do not. What they cannot do is None here, and stays with our own kernels.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..recurrent_plan import RecurrentRows
from ..transfer import upload


@dataclass(frozen=True, slots=True)
class OneChunk:
    """The only row with several tokens."""

    source: int | None  # the slot that it starts from; None: from zeros


@dataclass(frozen=True, slots=True)
class FreshChunks:
    """R rows with several tokens that all start from zeros."""

    rows: torch.Tensor  # [1, tokens] int32, 0 .. R - 1
    bounds: torch.Tensor  # [R + 1] int32, where each begins and the last one ends


@dataclass(frozen=True, slots=True)
class PlainTables:
    """D rows with one token, then R with several."""

    num_decodes: int
    slots: torch.Tensor | None  # [D]; None: some row starts from zeros or leaves a snapshot
    short_slots: torch.Tensor | None  # the same as int32
    chunks: OneChunk | FreshChunks | None  # None: there are none, or some of several resume
    targets: torch.Tensor | None  # [R] slots of final states; None: some row writes none, or leaves snapshots

    @classmethod
    def of(cls, rows: RecurrentRows) -> "PlainTables":
        """Uploads what it holds."""
        count, device = rows.num_decodes, rows.device
        resumed, lens = rows.num_computed > 0, rows.lens[count:]
        slots = None
        if count and resumed[:count].all() and not (rows.snapshot_rows < count).any():
            slots = upload(rows.slots[:count], device)
        chunks: OneChunk | FreshChunks | None = None
        if len(lens) == 1:
            chunks = OneChunk(int(rows.slots[count]) if resumed[count] else None)
        elif len(lens) and not resumed[count:].any():
            owners = upload(np.repeat(np.arange(len(lens)), lens)[None], device)
            bounds = upload(np.concatenate(([0], np.cumsum(lens))), device)
            chunks = FreshChunks(owners.int(), bounds.int())
        targets = None
        if chunks is not None and rows.writes[count:].all() and not (rows.snapshot_rows >= count).any():
            targets = upload(rows.slots[count:], device)
        return cls(count, slots, None if slots is None else slots.int(), chunks, targets)
