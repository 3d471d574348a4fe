"""The scan of Mamba-1 by Triton's kernels, over a mixed batch; with one state per channel it is also that of RG-LRU.

Symbols: see `ops/selective.py`, the reference; Q tokens per block, B blocks. Inside a block the recurrence runs token
by token, in all blocks of all chunks and all channels at once; four tokens are loaded before the first is used. Where a
chunk has several blocks, a first pass finds what each adds to the state, a second one the state before each. Everything
is in float32. Tables: `recurrent_tables`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton import cdiv, next_power_of_2

from .recurrent_tables import RecurrentTables

ELEMENTS = 512  # of a state, per program
TOKEN_ELEMENTS = 256  # of one where tokens follow one another: threads load what they use, without waiting for others
CHANNELS = 128  # per program, at most


@dataclass(frozen=True, slots=True)
class Maps:
    """What Mamba has and RG-LRU has not."""

    a: torch.Tensor  # [N, W] float32
    b: torch.Tensor  # [T, N]
    c: torch.Tensor  # [T, N]


def scan(
    tables: RecurrentTables, x: torch.Tensor, rate: torch.Tensor, maps: Maps | None, ssm: torch.Tensor
) -> torch.Tensor:
    """x and rate [T, W] -> y [T, W] float32; advances ssm [slots, N, W].

    h = exp(rate a) h + b (outer) rate x, y = c . h; without maps, where N is 1: h = exp(rate) h + x, y = h.
    """
    tokens, channels = x.shape
    size = ssm.shape[1]
    assert x.stride(1) == rate.stride(1) == 1 and ssm.is_contiguous()
    y = x.new_empty(tokens, channels, dtype=torch.float32)
    a, b, c = (x, x, x) if maps is None else (maps.a, maps.b, maps.c)
    assert b.stride(1) == c.stride(1) == 1 and (maps is None or a.is_contiguous())
    wide = next_power_of_2(size)
    some, few = (min(next_power_of_2(channels), CHANNELS, max(16, n // wide)) for n in (ELEMENTS, TOKEN_ELEMENTS))
    sizes = {"N": size, "W": channels, "BLOCK_N": wide, "BLOCK_W": some, "MAPS": maps is not None}
    of_tokens = sizes | {"BLOCK_W": few}
    strides = (x.stride(0), rate.stride(0), b.stride(0))
    tiles = cdiv(channels, some)
    decodes, chunks = tables.decodes, tables.chunks
    if decodes is not None:
        selective_step[(decodes.num_rows, tiles)](
            *(x, rate, a, b, c, ssm, y, decodes.rows, tables.snapshots, *strides, c.stride(0)), **sizes, num_warps=1
        )
    if chunks is not None:
        states, totals = ssm, ssm  # not read
        if chunks.is_cut:
            states = ssm.new_empty(chunks.num_blocks, size, channels, dtype=torch.float32)
            totals = ssm.new_empty(chunks.num_blocks, channels, dtype=torch.float32)
            selective_add[(chunks.num_blocks, cdiv(channels, few))](
                *(x, rate, a, b, states, totals, chunks.rows, chunks.blocks, *strides), **of_tokens, num_warps=1
            )
            selective_carry[(chunks.num_rows, tiles)](states, totals, a, ssm, chunks.rows, **sizes, num_warps=1)
        selective_read[(chunks.num_blocks, cdiv(channels, few))](
            *(x, rate, a, b, c, states, ssm, y, chunks.rows, chunks.blocks, tables.snapshots, *strides, c.stride(0)),
            **of_tokens,
            IS_CUT=chunks.is_cut,
            num_warps=1,
        )
    return y


@triton.jit
def _load(
    x, rate, b, token, end, n, w, x_stride, rate_stride, b_stride, N: tl.constexpr, W: tl.constexpr, MAPS: tl.constexpr
):
    """Of one token: its rate [BLOCK_W], and what it adds to the state [BLOCK_N, BLOCK_W]. From `end` on both are 0: the
    state stays as it is."""
    mask = (w < W) & (token < end)
    token = tl.cast(token, tl.int64)
    speed = tl.load(rate + token * rate_stride + w, mask=mask, other=0).to(tl.float32)
    added = tl.load(x + token * x_stride + w, mask=mask, other=0).to(tl.float32)[None, :]
    if MAPS:
        inward = tl.load(b + token * b_stride + n, mask=(n < N) & (token < end), other=0).to(tl.float32)
        added = inward[:, None] * (added * speed[None, :])
    return speed, added


@triton.jit
def _rates(a, n, w, N: tl.constexpr, W: tl.constexpr, MAPS: tl.constexpr):
    """a [BLOCK_N, BLOCK_W], 1 where there are no maps."""
    if MAPS:
        return tl.load(a + n[:, None] * W + w[None, :], mask=(n < N)[:, None] & (w < W)[None, :], other=0)
    return tl.full([n.shape[0], w.shape[0]], 1.0, tl.float32)


@triton.jit
def _outward(c, token, end, n, c_stride, N: tl.constexpr, MAPS: tl.constexpr):
    """By what the states of one token are summed up [BLOCK_N]."""
    if MAPS:
        return tl.load(c + tl.cast(token, tl.int64) * c_stride + n, mask=(n < N) & (token < end), other=0).to(
            tl.float32
        )
    return tl.full([n.shape[0]], 1.0, tl.float32)


@triton.jit
def _read(h, speed, added, outward, rates, y, token, end, w, W: tl.constexpr):
    """The state [BLOCK_N, BLOCK_W] after one token, which is read; 0 beyond N."""
    h = h * tl.exp(speed[None, :] * rates) + added
    tl.store(y + tl.cast(token, tl.int64) * W + w, tl.sum(h * outward[:, None], 0), mask=(w < W) & (token < end))
    return h


@triton.jit
def selective_step(
    x,  # [T, W], contiguous but for the first axis, as rate, b and c
    rate,  # [T, W]
    a,  # [N, W]
    b,  # [T, N]
    c,  # [T, N]
    ssm,  # [slots, N, W] float32
    y,  # [T, W] float32
    rows,  # [D, 4]
    snapshots,  # [S, 4]
    x_stride,
    rate_stride,
    b_stride,
    c_stride,
    N: tl.constexpr,
    W: tl.constexpr,
    BLOCK_N: tl.constexpr,  # at least N
    BLOCK_W: tl.constexpr,
    MAPS: tl.constexpr,
):
    """Grid (D, W / BLOCK_W): rows with one token."""
    row = tl.program_id(0)
    source = tl.load(rows + row * 4).to(tl.int64)
    target = tl.load(rows + row * 4 + 1).to(tl.int64)
    first = tl.load(rows + row * 4 + 2)
    end = tl.load(rows + row * 4 + 3)
    n = tl.arange(0, BLOCK_N)
    w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    mask = (n < N)[:, None] & (w < W)[None, :]
    at = n[:, None] * W + w[None, :]
    h = tl.load(ssm + source * (N * W) + at, mask=mask & (source >= 0), other=0)
    speed, added = _load(x, rate, b, row, row + 1, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
    outward = _outward(c, row, row + 1, n, c_stride, N, MAPS)
    h = _read(h, speed, added, outward, _rates(a, n, w, N, W, MAPS), y, row, row + 1, w, W)
    tl.store(ssm + target * (N * W) + at, h, mask=mask & (target >= 0))
    for i in range(first, end):
        tl.store(ssm + tl.load(snapshots + i * 4).to(tl.int64) * (N * W) + at, h, mask=mask)


@triton.jit
def selective_add(
    x,  # [T, W], contiguous but for the first axis, as rate and b
    rate,  # [T, W]
    a,  # [N, W]
    b,  # [T, N]
    states,  # [B, N, W] float32: written
    totals,  # [B, W] float32, sum of the block's rates: written
    rows,  # [R, 8]
    blocks,  # [B, 5]
    x_stride,
    rate_stride,
    b_stride,
    N: tl.constexpr,
    W: tl.constexpr,
    BLOCK_N: tl.constexpr,  # at least N
    BLOCK_W: tl.constexpr,
    MAPS: tl.constexpr,
):
    """Grid (B, W / BLOCK_W): what the tokens of one block add to the state after it, unless it is its row's last."""
    block = tl.program_id(0)
    token = tl.load(blocks + block * 5 + 1)
    count = tl.load(blocks + block * 5 + 2)
    end = tl.load(rows + tl.load(blocks + block * 5) * 8 + 5)
    n = tl.arange(0, BLOCK_N)
    w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    if block + 1 < end:
        rates = _rates(a, n, w, N, W, MAPS)
        h = tl.zeros([BLOCK_N, BLOCK_W], tl.float32)
        total = tl.zeros([BLOCK_W], tl.float32)
        stop = token + count
        for t in range(token, stop, 4):
            speed0, added0 = _load(x, rate, b, t, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            speed1, added1 = _load(x, rate, b, t + 1, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            speed2, added2 = _load(x, rate, b, t + 2, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            speed3, added3 = _load(x, rate, b, t + 3, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            h = h * tl.exp(speed0[None, :] * rates) + added0
            h = h * tl.exp(speed1[None, :] * rates) + added1
            h = h * tl.exp(speed2[None, :] * rates) + added2
            h = h * tl.exp(speed3[None, :] * rates) + added3
            total += speed0 + speed1 + speed2 + speed3
        at = block.to(tl.int64) * N
        tl.store(states + (at + n)[:, None] * W + w[None, :], h, mask=(n < N)[:, None] & (w < W)[None, :])
        tl.store(totals + block.to(tl.int64) * W + w, total, mask=w < W)


@triton.jit
def selective_carry(
    states,  # [B, N, W] float32: what each block adds; becomes the state before it
    totals,  # [B, W] float32
    a,  # [N, W]
    ssm,  # [slots, N, W] float32
    rows,  # [R, 8]
    N: tl.constexpr,
    W: tl.constexpr,
    BLOCK_N: tl.constexpr,  # at least N
    BLOCK_W: tl.constexpr,
    MAPS: tl.constexpr,
):
    """Grid (R, W / BLOCK_W): from block to block of a row."""
    row = tl.program_id(0)
    source = tl.load(rows + row * 8).to(tl.int64)
    first = tl.load(rows + row * 8 + 4)
    end = tl.load(rows + row * 8 + 5)
    n = tl.arange(0, BLOCK_N)
    w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    mask = (n < N)[:, None] & (w < W)[None, :]
    at = n[:, None] * W + w[None, :]
    rates = _rates(a, n, w, N, W, MAPS)
    h = tl.load(ssm + source * (N * W) + at, mask=mask & (source >= 0), other=0)
    for block in range(first, end):
        here = states + tl.cast(block, tl.int64) * (N * W) + at
        more = block + 1 < end  # nothing was added up for the last one
        added = tl.load(here, mask=mask & more, other=0)
        total = tl.load(totals + tl.cast(block, tl.int64) * W + w, mask=(w < W) & more, other=0)
        tl.store(here, h, mask=mask)
        h = h * tl.exp(total[None, :] * rates) + added


@triton.jit
def selective_read(
    x,  # [T, W], contiguous but for the first axis, as rate, b and c
    rate,  # [T, W]
    a,  # [N, W]
    b,  # [T, N]
    c,  # [T, N]
    states,  # [B, N, W] float32, before each block; only where IS_CUT
    ssm,  # [slots, N, W] float32
    y,  # [T, W] float32
    rows,  # [R, 8]
    blocks,  # [B, 5]
    snapshots,  # [S, 4]
    x_stride,
    rate_stride,
    b_stride,
    c_stride,
    N: tl.constexpr,
    W: tl.constexpr,
    BLOCK_N: tl.constexpr,  # at least N
    BLOCK_W: tl.constexpr,
    MAPS: tl.constexpr,
    IS_CUT: tl.constexpr,
):
    """Grid (B, W / BLOCK_W): every y, snapshots, and the state after the last block of a row."""
    block = tl.program_id(0)
    row = tl.load(blocks + block * 5)
    token = tl.load(blocks + block * 5 + 1)
    count = tl.load(blocks + block * 5 + 2)
    first = tl.load(blocks + block * 5 + 3)
    end = tl.load(blocks + block * 5 + 4)
    n = tl.arange(0, BLOCK_N)
    w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    mask = (n < N)[:, None] & (w < W)[None, :]
    at = n[:, None] * W + w[None, :]
    if IS_CUT:
        h = tl.load(states + block.to(tl.int64) * (N * W) + at, mask=mask, other=0)
    else:
        source = tl.load(rows + row * 8).to(tl.int64)
        h = tl.load(ssm + source * (N * W) + at, mask=mask & (source >= 0), other=0)
    rates = _rates(a, n, w, N, W, MAPS)
    # from snapshot to snapshot, then to the end
    done = token
    for i in range(first, end + 1):
        stop, slot = token + count, tl.full([], -1, tl.int64)
        if i < end:
            stop = token + tl.load(snapshots + i * 4 + 3) + 1
            slot = tl.load(snapshots + i * 4).to(tl.int64)
        elif block + 1 == tl.load(rows + row * 8 + 5):
            slot = tl.load(rows + row * 8 + 1).to(tl.int64)
        for t in range(done, stop, 4):
            speed0, added0 = _load(x, rate, b, t, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            speed1, added1 = _load(x, rate, b, t + 1, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            speed2, added2 = _load(x, rate, b, t + 2, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            speed3, added3 = _load(x, rate, b, t + 3, stop, n, w, x_stride, rate_stride, b_stride, N, W, MAPS)
            outward0 = _outward(c, t, stop, n, c_stride, N, MAPS)
            outward1 = _outward(c, t + 1, stop, n, c_stride, N, MAPS)
            outward2 = _outward(c, t + 2, stop, n, c_stride, N, MAPS)
            outward3 = _outward(c, t + 3, stop, n, c_stride, N, MAPS)
            h = _read(h, speed0, added0, outward0, rates, y, t, stop, w, W)
            h = _read(h, speed1, added1, outward1, rates, y, t + 1, stop, w, W)
            h = _read(h, speed2, added2, outward2, rates, y, t + 2, stop, w, W)
            h = _read(h, speed3, added3, outward3, rates, y, t + 3, stop, w, W)
        tl.store(ssm + slot * (N * W) + at, h, mask=mask & (slot >= 0))
        done = stop
