"""The plan of `TritonAttention` for decode steps that a graph replays: made by a kernel, out of tables on the device.

How often rows are cut depends on nothing that changes from step to step: on the batch's size and the longest rows that
there may be. Rows that are shorter leave some of their tiles empty.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import torch
import triton
import triton.language as tl

from ...context import AttentionCache, DecodeContext
from ..workspace import Workspace
from .attention import Tiles, Tiling, TritonAttention, decode_tiling
from .device import num_programs

SPLITS = 4  # of a row at least, where it may be long: rows of a batch differ in length
NO_WINDOW = 2**30


@triton.jit(do_not_specialize=["nobody", "table_stride", "window", "min_split"])
def cut(
    rows,  # [D] int64, lines of the table
    positions,  # [D] int64
    table,  # [num_rows + 1, blocks] int32
    slots,  # [D] int32, written: where the token goes
    firsts,  # [D] int32, written: first position that it sees
    ends,  # [D] int32, written: the one after the last
    tiles,  # [D * SPLITS, 8] int32, written: see `attention_kernels.attend`
    splits,  # [D, 2] int32, written: see `attention_kernels.combine`
    nobody,
    table_stride,
    window,
    min_split,  # keys that a split has at least
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
):
    """Grid (D): one row with one token."""
    i = tl.program_id(0)
    row = tl.load(rows + i).to(tl.int32)
    position = tl.load(positions + i).to(tl.int32)
    block = tl.load(table + row.to(tl.int64) * table_stride + position // BLOCK_SIZE)
    slot = tl.where(row == nobody, -1, block * BLOCK_SIZE + position % BLOCK_SIZE)
    first, end = tl.maximum(position - window + 1, 0), position + 1
    tl.store(slots + i, slot)
    tl.store(firsts + i, first)
    tl.store(ends + i, end)
    size = tl.cdiv(tl.maximum(tl.cdiv(end - first, SPLITS), min_split), BLOCK_N) * BLOCK_N
    split = tl.arange(0, SPLITS_PADDED)
    begin = tl.minimum(first + split * size, end)
    stop = tl.minimum(begin + size, end)
    entry = tiles + (i * SPLITS + split) * 8
    mask = split < SPLITS
    tl.store(entry, row, mask=mask)
    tl.store(entry + 1, i, mask=mask)
    tl.store(entry + 2, 1, mask=mask)
    tl.store(entry + 3, begin, mask=mask)
    tl.store(entry + 4, begin, mask=mask)
    tl.store(entry + 5, begin + (stop - begin) // BLOCK_N * BLOCK_N, mask=mask)
    tl.store(entry + 6, stop, mask=mask)
    tl.store(entry + 7, (split == 0).to(tl.int32), mask=mask)
    tl.store(splits + i * 2, i * SPLITS)
    tl.store(splits + i * 2 + 1, tl.cdiv(end - first, size))


def plan_decodes(
    context: DecodeContext,
    table: torch.Tensor,
    sliding_window: int | None,
    cache: AttentionCache,
    num_heads: int,
    tiling: Tiling | None = None,
) -> TritonAttention:
    """For all layers with this table of the context, this window and so many heads. tiling: None: what suits the sizes.

    What it writes to is its own, so that nobody else's work comes between: a graph keeps it.
    """
    num_blocks, _, num_kv_heads, block_size, head_size = cache.kv.shape
    assert num_blocks * block_size < 2**31 and table.stride(1) == 1
    device, group, rows = cache.kv.device, num_heads // num_kv_heads, len(context.rows)
    tiling = decode_tiling(group, head_size, cache.kv.element_size()) if tiling is None else tiling
    longest = table.shape[1] * block_size if sliding_window is None else sliding_window
    programs = num_programs(device) // num_kv_heads
    num_splits = min(triton.cdiv(longest, tiling.min_split), max(SPLITS, triton.cdiv(programs, rows)))
    slots, first, ends = (torch.empty(rows, dtype=torch.int32, device=device) for _ in range(3))
    tiles = torch.empty((rows * num_splits, 8), dtype=torch.int32, device=device)
    splits = torch.empty((rows, 2), dtype=torch.int32, device=device)
    cut[(rows,)](
        context.rows,
        context.positions,
        table,
        slots,
        first,
        ends,
        tiles,
        splits,
        context.nobody,
        table.stride(0),
        NO_WINDOW if sliding_window is None else sliding_window,
        tiling.min_split,
        BLOCK_SIZE=block_size,
        BLOCK_N=tiling.block_n,
        SPLITS=num_splits,
        SPLITS_PADDED=triton.next_power_of_2(num_splits),
    )
    all_rows = Tiles(tiles, splits if num_splits > 1 else None, 0, rows, 1, tiling)
    return TritonAttention(slots, table, first, ends, (all_rows,), sliding_window is not None, Workspace())
