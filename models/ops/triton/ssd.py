"""The scan of Mamba-2 by Triton's kernels, over a mixed batch.

Symbols: see `ops/ssd.py`, the reference; Q tokens per block, B blocks. Of chunks, all blocks and heads run at once;
only the recurrence over the states of a row's blocks goes one by one. Sums are in float32, products of matrices in the
dtype of b and c, or for float32 as three of tf32. Tables: `recurrent_tables`.
"""

import torch
import triton.language as tl
from triton import cdiv, next_power_of_2

from . import ssd_kernels as kernels
from .device import product_dtype
from .recurrent_tables import RecurrentTables

STEP_ELEMENTS = 4096  # of a state, per program
PASS_ELEMENTS = 1024
MAX_P, MAX_N = 64, 128  # of tiles
READ_BYTES, READ_N = 128, 64  # of tiles of x and of states, where states are read: what registers hold
AHEAD_BYTES = 256  # of a row of c
HEADS = 4  # that share one product of c and b


def decodes(
    tables: RecurrentTables,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    ssm: torch.Tensor,
    y: torch.Tensor,
) -> torch.Tensor:
    """The rows with one token of x [T, H, P], dt [T, H], a [H], b and c [T, G, N] -> y [T, H, P] float32; advances ssm
    [slots, H, P, N] and writes its snapshots.

    x, b and c are contiguous but for the first axis.
    """
    rows = tables.decodes
    assert rows is not None and _are_fit(x, dt, a, b, c, ssm)
    _, heads, channels = x.shape
    groups, size = b.shape[1:]
    wide = next_power_of_2(size)
    some = min(next_power_of_2(channels), max(1, STEP_ELEMENTS // wide))
    strides = (x.stride(0), dt.stride(0), b.stride(0), c.stride(0))
    kernels.ssd_step[(rows.num_rows, heads, cdiv(channels, some))](
        *(x, dt, a, b, c, ssm, y, rows.rows, tables.snapshots, *strides),
        **{"H": heads, "GROUP": heads // groups, "P": channels, "N": size, "BLOCK_P": some, "BLOCK_N": wide},
    )
    return y


def chunks(
    tables: RecurrentTables,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    ssm: torch.Tensor,
    y: torch.Tensor,
) -> torch.Tensor:
    """The rows with several tokens, otherwise as `decodes`."""
    rows = tables.chunks
    assert rows is not None and _are_fit(x, dt, a, b, c, ssm)
    _, heads, channels = x.shape
    groups, size = b.shape[1:]
    per_group, length = heads // groups, rows.block_size
    decay = x.new_empty((rows.num_blocks, heads, length), dtype=torch.float32)  # log, summed from the block's start
    states = x.new_empty((rows.num_blocks, heads, channels, size), dtype=torch.float32)
    sizes = {"H": heads, "GROUP": per_group, "P": channels, "N": size, "Q": length}
    sizes |= {"BLOCK_P": max(16, min(MAX_P, next_power_of_2(channels)))}
    sizes |= {"BLOCK_N": max(16, min(MAX_N, next_power_of_2(size)))}
    # a state may exceed what float16 holds
    sizes |= {"PRODUCT": tl.float32 if b.dtype == torch.float16 else product_dtype(b.dtype)}
    p_tiles, n_tiles = cdiv(channels, sizes["BLOCK_P"]), cdiv(size, sizes["BLOCK_N"])
    strides = (x.stride(0), dt.stride(0), b.stride(0))
    # 1. what each block adds to the state
    grid = (rows.num_blocks, heads, p_tiles * n_tiles)
    kernels.ssd_add[grid](x, dt, a, b, decay, states, rows.blocks, *strides, **sizes)
    # 2. the recurrence over blocks: the state each block starts from, and the one after the last
    elements = channels * size
    some = min(PASS_ELEMENTS, next_power_of_2(elements))
    grid = (rows.num_rows, heads, cdiv(elements, some))
    kernels.ssd_carry[grid](states, decay, ssm, rows.rows, H=heads, SIZE=elements, Q=length, BLOCK=some)
    # 3. what the tokens read
    # loaded ahead where it fits the shared memory of every device
    stages = 2 if b.element_size() * sizes["BLOCK_N"] * n_tiles <= AHEAD_BYTES else 1
    shared = HEADS if per_group % HEADS == 0 else 1
    few = READ_BYTES // b.element_size()
    reads = {"BLOCK_P": min(sizes["BLOCK_P"], few), "BLOCK_N": min(sizes["BLOCK_N"], READ_N)}
    grid = (rows.num_blocks, heads // shared, cdiv(channels, reads["BLOCK_P"]))
    kernels.ssd_read[grid](
        *(x, dt, b, c, decay, states, y, rows.blocks, *strides, c.stride(0)),
        **(sizes | reads),
        SHARED=shared,
        num_stages=stages,
    )
    # 4. snapshots
    if rows.num_snapshots:
        mine = tables.snapshots[rows.first_snapshot :]
        grid = (rows.num_snapshots, heads, p_tiles * n_tiles)
        kernels.ssd_snapshot[grid](x, dt, b, decay, states, ssm, rows.blocks, mine, *strides, **sizes)
    return y


def _are_fit(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, ssm: torch.Tensor
) -> bool:
    inner = all(values.stride(2) == 1 and values.stride(1) == values.shape[2] for values in (x, b, c))
    return inner and dt.stride(1) == 1 and a.is_contiguous() and ssm.is_contiguous()
