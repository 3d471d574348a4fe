"""The gated delta rule by Triton's kernels, over a mixed batch.

Symbols: see `ops/delta_rule.py`, the reference; Q tokens per block, B blocks. Of chunks, all blocks and heads run at
once; only the recurrence over the states of a row's blocks goes one by one. Inside a block the new values solve a
triangular system: by substitution, over strips of 16 tokens, whose own systems are inverted. Sums are in float32.
Tables: `recurrent_tables`.
"""

import torch
from triton import cdiv, next_power_of_2

from . import delta_rule_kernels as kernels
from .device import shared_memory
from .recurrent_tables import Chunks, RecurrentTables

STEP_ELEMENTS = 4096  # of a state, per program
PASS_V, READ_V = 32, 64  # channels of values per program
AHEAD_MEMORY = 160 * 1024  # bytes of a program


def delta_rule(
    tables: RecurrentTables,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    exact: bool,
) -> torch.Tensor:
    """q and k [T, G, K], v [T, H, V], g and beta [T, H] -> y [T, H, V] float32; advances states [slots, H, K, V].

    q, k and v are contiguous but for the first axis. exact: products of matrices as three
    of tf32, which is about float32, else as one.
    """
    for values in (q, k, v):
        assert values.stride(2) == 1 and values.stride(1) == values.shape[2]
    assert g.stride(1) == beta.stride(1) == 1 and states.is_contiguous()
    y = v.new_empty(v.shape, dtype=torch.float32)
    if tables.decodes is not None:
        heads, channels = v.shape[1:]
        groups, keys = k.shape[1:]
        wide = next_power_of_2(keys)
        some = min(next_power_of_2(channels), max(16, STEP_ELEMENTS // wide))
        strides = (q.stride(0), k.stride(0), v.stride(0), g.stride(0), beta.stride(0))
        kernels.delta_step[(tables.decodes.num_rows, heads, cdiv(channels, some))](
            *(q, k, v, g, beta, states, y, tables.decodes.rows, tables.snapshots, *strides),
            **{"H": heads, "GROUP": heads // groups, "K": keys, "V": channels, "BLOCK_K": wide, "BLOCK_V": some},
        )
    if tables.chunks is not None:
        _chunks(tables.chunks, tables.snapshots, q, k, v, g, beta, states, y, "tf32x3" if exact else "tf32")
    return y


def _chunks(
    chunks: Chunks,
    snapshots: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    y: torch.Tensor,
    precision: str,
) -> None:
    """Mutates states and y."""
    heads, channels = v.shape[1:]
    groups, keys = k.shape[1:]
    blocks, length = chunks.num_blocks, chunks.block_size
    decay = v.new_empty((blocks, heads, length), dtype=torch.float32)  # log, summed from the block's start
    new = v.new_empty((blocks, heads, length, channels), dtype=torch.float32)  # values, were the block's start zero
    reads = v.new_empty((blocks, heads, length, keys), dtype=torch.float32)  # what they lose by the block's start
    before = v.new_empty((blocks, heads, keys, channels), dtype=torch.float32)  # the state each block starts from
    sizes = {"H": heads, "GROUP": heads // groups, "K": keys, "V": channels, "Q": length, "PRECISION": precision}
    sizes |= {"BLOCK_K": max(16, next_power_of_2(keys))}
    wide = max(16, next_power_of_2(channels))
    few, some = min(wide, PASS_V), min(wide, READ_V)
    strides = (k.stride(0), v.stride(0), g.stride(0), beta.stride(0))
    # one after the other, a row's blocks are loaded ahead where there is room for it
    stages = 2 if shared_memory(v.device) >= AHEAD_MEMORY else 1
    # 1. the system of every block; a program reads what it has written, so that nothing may be loaded ahead
    kernels.delta_solve[(blocks, heads)](
        *(k, v, g, beta, decay, new, reads, chunks.blocks, *strides), **sizes, BLOCK_V=some, num_stages=1
    )
    # 2. the recurrence over blocks: their starts, their new values, and the state after the last
    kernels.delta_carry[(chunks.num_rows, heads, cdiv(channels, few))](
        *(k, decay, new, reads, before, states, chunks.rows, chunks.blocks, k.stride(0)),
        **sizes,
        BLOCK_V=few,
        num_stages=stages,
    )
    # 3. what the queries read
    kernels.delta_read[(blocks, heads, cdiv(channels, some))](
        *(q, k, decay, new, before, y, chunks.blocks, q.stride(0), k.stride(0)), **sizes, BLOCK_V=some
    )
    # 4. snapshots
    if chunks.num_snapshots:
        mine = snapshots[chunks.first_snapshot :]
        kernels.delta_snapshot[(chunks.num_snapshots, heads, cdiv(channels, few))](
            *(k, decay, new, before, states, chunks.blocks, mine, k.stride(0)), **sizes, BLOCK_V=few
        )
