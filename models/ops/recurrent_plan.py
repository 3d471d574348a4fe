"""The plan of a step's recurrent layers: index arithmetic over decode rows and chunks, on the host, uploaded once.

D decode rows, R chunks, K kernel, Q tokens per block of the scan, B blocks, S states to write.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..context import ForwardContext, Ints
from .transfer import upload

LONG_BLOCK = 64
SHORT_BLOCK = 16


@dataclass(frozen=True, slots=True)
class RecurrentRows:
    """The rows of a batch as recurrent layers see them. Rows with one token first."""

    lens: Ints  # [num_rows]
    num_computed: Ints  # [num_rows], 0: start from zero state
    slots: Ints  # [num_rows]
    writes: NDArray[np.bool_]  # [num_rows], whether the final state goes to the row's slot
    snapshot_rows: Ints  # [n]
    snapshot_lengths: Ints  # [n]
    snapshot_slots: Ints  # [n]
    device: torch.device

    @classmethod
    def of(cls, context: ForwardContext) -> "RecurrentRows":
        """All rows of the batch; those whose state is deferred write none."""
        writes = np.ones(context.num_rows, dtype=np.bool_)
        if context.deferred is not None:
            writes[context.deferred.rows] = False
        snapshots = context.snapshots
        return cls(
            lens=context.query_lens,
            num_computed=context.num_computed_tokens,
            slots=context.state_slots,
            writes=writes,
            snapshot_rows=snapshots.rows,
            snapshot_lengths=snapshots.lengths,
            snapshot_slots=snapshots.slots,
            device=context.token_ids.device,
        )

    @property
    def num_decodes(self) -> int:
        return int((self.lens == 1).sum())


@dataclass(frozen=True, slots=True)
class Decodes:
    """Rows with one token. A copy of a row's new state goes to copy_slots (snapshots)."""

    num_rows: int
    slots: torch.Tensor  # [D]
    fresh: torch.Tensor | None  # [D, 1, 1] bool, rows that start from zero; None: no such row
    copy_rows: torch.Tensor | None  # [n] index into the decode rows
    copy_slots: torch.Tensor | None  # [n]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Rows with several tokens. A written state is a snapshot, or the final state of each chunk."""

    begin: int  # first flat token
    num_tokens: int
    num_rows: int
    slots: torch.Tensor  # [R]
    fresh: torch.Tensor | None  # [R, 1, 1] bool
    # convolution: tokens of a chunk lie behind K - 1 inputs of its state, chunk after chunk
    window_index: torch.Tensor  # [tokens] where each token's K inputs begin
    state_index: torch.Tensor  # [R * (K - 1)] where the states' inputs go
    written_index: torch.Tensor  # [S * (K - 1)] the inputs that each written state keeps
    written_slots: torch.Tensor  # [S]
    # scan
    block_size: int  # Q
    num_blocks: int  # B, of all chunks
    padded_index: torch.Tensor  # [tokens] place of each token in [B * Q]
    rounds: tuple[tuple[torch.Tensor, torch.Tensor], ...]  # per round of the recurrence: (rows, their blocks)
    written_blocks: torch.Tensor  # [S]
    written_offsets: torch.Tensor  # [S] last token seen, inside its block
    written_at: dict[int, tuple[torch.Tensor, torch.Tensor]]  # the same by offset: (index of 0 .. S - 1, blocks)


def _fresh(num_computed: Ints, device: torch.device) -> torch.Tensor | None:
    fresh = num_computed == 0
    return upload(fresh, device)[:, None, None] if fresh.any() else None


def plan_decodes(rows: RecurrentRows) -> Decodes:
    """The rows with one token; at least one."""
    device, n = rows.device, rows.num_decodes
    assert rows.writes[:n].all()
    copied = rows.snapshot_rows < n
    any_copied = bool(copied.any())
    return Decodes(
        num_rows=n,
        slots=upload(rows.slots[:n], device),
        fresh=_fresh(rows.num_computed[:n], device),
        copy_rows=upload(rows.snapshot_rows[copied], device) if any_copied else None,
        copy_slots=upload(rows.snapshot_slots[copied], device) if any_copied else None,
    )


def plan_chunks(rows: RecurrentRows, tail: int) -> Chunks:
    """The rows with several tokens; at least one. tail: K - 1."""
    device, decodes = rows.device, rows.num_decodes
    lens, slots = rows.lens[decodes:], rows.slots[decodes:]  # [R]
    num_rows, num_tokens = len(lens), int(lens.sum())
    starts = np.cumsum(lens) - lens
    # 1. states to write: the final state of the chunks that know it, then snapshots
    final = np.flatnonzero(rows.writes[decodes:])
    inside = rows.snapshot_rows >= decodes
    written_rows = np.concatenate((final, rows.snapshot_rows[inside] - decodes))
    written_lengths = np.concatenate((lens[final], rows.snapshot_lengths[inside]))
    written_slots = np.concatenate((slots[final], rows.snapshot_slots[inside]))
    assert (written_lengths >= 1).all() and (written_lengths <= lens[written_rows]).all()
    # 2. the convolution: token t of chunk r stands behind (r + 1) * (K - 1) inputs of states
    row_of_token = np.repeat(np.arange(num_rows), lens)
    window_index = np.arange(num_tokens) + row_of_token * tail
    state_index = (starts + np.arange(num_rows) * tail)[:, None] + np.arange(tail)
    written_ends = starts[written_rows] + written_rows * tail + written_lengths
    # 3. blocks of the scan: every chunk begins a new one
    size = LONG_BLOCK if int(lens.max()) > SHORT_BLOCK else SHORT_BLOCK
    blocks_of_row = -(-lens // size)
    first_block = np.cumsum(blocks_of_row) - blocks_of_row
    padded_index = first_block[row_of_token] * size + np.arange(num_tokens) - starts[row_of_token]
    rounds = []
    for turn in range(int(blocks_of_row.max())):
        left = np.flatnonzero(blocks_of_row > turn)
        rounds.append((upload(left, device), upload(first_block[left] + turn, device)))
    written_blocks = first_block[written_rows] + (written_lengths - 1) // size
    written_offsets = (written_lengths - 1) % size
    written_at = {}
    for offset in np.unique(written_offsets).tolist():
        states = np.flatnonzero(written_offsets == offset)
        written_at[offset] = (upload(states, device), upload(written_blocks[states], device))
    return Chunks(
        begin=decodes,
        num_tokens=num_tokens,
        num_rows=num_rows,
        slots=upload(slots, device),
        fresh=_fresh(rows.num_computed[decodes:], device),
        window_index=upload(window_index, device),
        state_index=upload(state_index.reshape(-1), device),
        written_index=upload((written_ends[:, None] + np.arange(tail)).reshape(-1), device),
        written_slots=upload(written_slots, device),
        block_size=size,
        num_blocks=int(blocks_of_row.sum()),
        padded_index=upload(padded_index, device),
        rounds=tuple(rounds),
        written_blocks=upload(written_blocks, device),
        written_offsets=upload(written_offsets, device),
        written_at=written_at,
    )
