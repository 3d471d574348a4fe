"""The plan of a step's recurrent layers as their kernels read it: who starts from which slot, who writes where.

Tokens of a chunk lie in blocks of one size, every chunk begins a new one; the blocks of all chunks are worked on at
once. Snapshots lie in the order of rows and of the tokens in them. All tables are int32 and uploaded in one copy; the
kernels' grids are numbers of the host.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ..packages.tables import PlainTables
from ..recurrent_plan import RecurrentRows
from .device import upload

LONG_BLOCK = 64
SHORT_BLOCK = 16
SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")  # of equal elements: the first, and behind the last
NOWHERE = -1  # as the slot that a row starts from: zeros; as the one that its state goes to: it is not written


@dataclass(frozen=True, slots=True)
class Decodes:
    """Rows with one token: row i is token i."""

    num_rows: int
    rows: torch.Tensor  # [D, 4] slot to start from, slot to write, first of its snapshots, end of them


@dataclass(frozen=True, slots=True)
class Chunks:
    """Rows with several tokens."""

    num_rows: int
    num_blocks: int
    num_snapshots: int
    block_size: int
    is_cut: bool  # some row has several blocks
    rows: torch.Tensor  # [R, 8] slot to start from, slot to write, snapshots (first, end), blocks (first, end),
    # first token, number of tokens
    blocks: torch.Tensor  # [B, 5] row, first token, number of tokens, snapshots (first, end)
    first_snapshot: int  # those before belong to decode rows


@dataclass(frozen=True, slots=True)
class RecurrentTables:
    """One batch."""

    decodes: Decodes | None
    chunks: Chunks | None
    snapshots: torch.Tensor  # [S, 4] slot, tokens of the row before it, block, last token before it inside the block
    plain: PlainTables | None = None  # the same batch for kernels of other packages

    @classmethod
    def of(
        cls, rows: RecurrentRows, sizes: tuple[int, int] = (SHORT_BLOCK, LONG_BLOCK), plain: bool = False
    ) -> "RecurrentTables":
        """Of a batch with at least one row. sizes: of blocks where no chunk is longer than the first, and else; powers
        of two. plain: whether kernels of other packages take part."""
        num_decodes, lens = rows.num_decodes, rows.lens
        assert (lens[:num_decodes] == 1).all() and rows.writes[:num_decodes].all()
        chunk_lens = lens[num_decodes:]
        size = sizes[int(chunk_lens.max(initial=0) > sizes[0])]
        # 1. snapshots by row and length
        order = np.lexsort((rows.snapshot_lengths, rows.snapshot_rows))
        owner, lengths = rows.snapshot_rows[order], rows.snapshot_lengths[order]
        assert (lengths >= 1).all() and (lengths <= lens[owner]).all()
        first, end = (np.searchsorted(owner, np.arange(len(lens)), side) for side in SIDES)
        # 2. rows
        source = np.where(rows.num_computed > 0, rows.slots, NOWHERE)
        target = np.where(rows.writes, rows.slots, NOWHERE)
        every = np.stack((source, target, first, end), axis=1)
        per_row = -(-chunk_lens // size)  # blocks
        end_block = np.cumsum(per_row)
        first_block = end_block - per_row
        starts = (np.cumsum(lens) - lens)[num_decodes:]
        spans = np.stack((first_block, end_block, starts, chunk_lens), axis=1)
        # 3. blocks, and the block of each snapshot
        row = np.repeat(np.arange(len(chunk_lens)), per_row)
        done = (np.arange(len(row)) - first_block[row]) * size  # tokens of the row before the block
        inside = np.flatnonzero(owner >= num_decodes)
        held = np.full(len(order), NOWHERE)
        held[inside] = first_block[owner[inside] - num_decodes] + (lengths[inside] - 1) // size
        held_first, held_end = (np.searchsorted(held, np.arange(len(row)), side) for side in SIDES)
        count = np.minimum(size, chunk_lens[row] - done)
        decode_rows, chunk_rows, blocks, snapshots = upload(
            (
                every[:num_decodes],
                np.concatenate((every[num_decodes:], spans), axis=1),
                np.stack((row, starts[row] + done, count, held_first, held_end), axis=1),
                np.stack((rows.snapshot_slots[order], lengths, held, (lengths - 1) % size), axis=1),
            ),
            rows.device,
        )
        return cls(
            decodes=Decodes(num_decodes, decode_rows) if num_decodes else None,
            chunks=Chunks(
                num_rows=len(chunk_lens),
                num_blocks=len(row),
                num_snapshots=len(inside),
                block_size=size,
                is_cut=bool((per_row > 1).any()),
                rows=chunk_rows,
                blocks=blocks,
                first_snapshot=len(order) - len(inside),
            )
            if len(chunk_lens)
            else None,
            snapshots=snapshots,
            plain=PlainTables.of(rows) if plain else None,
        )

    @classmethod
    def of_decodes(cls, slots: torch.Tensor, positions: torch.Tensor) -> "RecurrentTables":
        """Of rows with one token and no snapshots, made on the device. slots and positions [D]; slot NOWHERE: nobody's
        row."""
        nothing = torch.zeros_like(slots)
        source = slots.masked_fill(positions == 0, NOWHERE)
        rows = torch.stack((source, slots, nothing, nothing), dim=1).int()
        return cls(Decodes(len(slots), rows), None, rows.new_empty((0, 4)))
