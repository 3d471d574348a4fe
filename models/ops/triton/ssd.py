"""The scan of Mamba-2 by Triton's kernels, over a mixed batch.

Symbols: see `ops/ssd.py`, the reference; Q tokens per block, B blocks. Of chunks, all blocks and heads run at once; only
the recurrence over the states of a row's blocks goes one by one. Sums are in float32, products of matrices in the dtype
of b and c. Tables: `recurrent_tables`.
"""

import torch
import triton
import triton.language as tl
from triton import cdiv, next_power_of_2

from .device import product_dtype
from .recurrent_tables import Chunks, Decodes, RecurrentTables

STEP_ELEMENTS = 4096  # of a state, per program
PASS_ELEMENTS = 1024
MAX_P, MAX_N = 64, 128  # of tiles
HEADS = 4  # that share one product of c and b


def scan(
    tables: RecurrentTables,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
    """x [T, H, P], dt [T, H], a [H], b and c [T, G, N] -> y [T, H, P] float32; advances ssm [slots, H, P, N].

    x, b and c are contiguous but for the first axis.
    """
    for values in (x, b, c):
        assert values.stride(2) == 1 and values.stride(1) == values.shape[2]
    assert dt.stride(1) == 1 and a.is_contiguous() and ssm.is_contiguous()
    y = x.new_empty(x.shape, dtype=torch.float32)
    if tables.decodes is not None:
        _step(tables.decodes, tables.snapshots, x, dt, a, b, c, ssm, y)
    if tables.chunks is not None:
        _chunks(tables.chunks, tables.snapshots, x, dt, a, b, c, ssm, y)
    return y


def _step(
    decodes: Decodes,
    snapshots: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    ssm: torch.Tensor,
    y: torch.Tensor,
) -> None:
    """Mutates ssm and y."""
    _, heads, channels = x.shape
    groups, size = b.shape[1:]
    wide = next_power_of_2(size)
    some = min(next_power_of_2(channels), max(1, STEP_ELEMENTS // wide))
    strides = (x.stride(0), dt.stride(0), b.stride(0), c.stride(0))
    step[(decodes.num_rows, heads, cdiv(channels, some))](
        *(x, dt, a, b, c, ssm, y, decodes.rows, snapshots, *strides),
        **{"H": heads, "GROUP": heads // groups, "P": channels, "N": size, "BLOCK_P": some, "BLOCK_N": wide},
    )


def _chunks(
    chunks: Chunks,
    snapshots: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    ssm: torch.Tensor,
    y: torch.Tensor,
) -> None:
    """Mutates ssm and y."""
    _, heads, channels = x.shape
    groups, size = b.shape[1:]
    per_group, length = heads // groups, chunks.block_size
    decay = x.new_empty((chunks.num_blocks, heads, length), dtype=torch.float32)  # log, summed from the block's start
    states = x.new_empty((chunks.num_blocks, heads, channels, size), dtype=torch.float32)
    sizes = {"H": heads, "GROUP": per_group, "P": channels, "N": size, "Q": length}
    sizes |= {"BLOCK_P": max(16, min(MAX_P, next_power_of_2(channels)))}
    sizes |= {"BLOCK_N": max(16, min(MAX_N, next_power_of_2(size)))}
    product = {"PRODUCT": product_dtype(b.dtype)}
    p_tiles, n_tiles = cdiv(channels, sizes["BLOCK_P"]), cdiv(size, sizes["BLOCK_N"])
    strides = (x.stride(0), dt.stride(0), b.stride(0))
    # 1. what each block adds to the state
    grid = (chunks.num_blocks, heads, p_tiles * n_tiles)
    add[grid](x, dt, a, b, decay, states, chunks.blocks, *strides, **sizes, **product)
    # 2. the recurrence over blocks: the state each block starts from, and the one after the last
    elements = channels * size
    some = min(PASS_ELEMENTS, next_power_of_2(elements))
    grid = (chunks.num_rows, heads, cdiv(elements, some))
    carry[grid](states, decay, ssm, chunks.rows, H=heads, SIZE=elements, Q=length, BLOCK=some)
    # 3. what the tokens read
    shared = HEADS if per_group % HEADS == 0 else 1
    grid = (chunks.num_blocks, heads // shared, p_tiles)
    args = (x, dt, b, c, decay, states, y, chunks.blocks, *strides, c.stride(0))
    read[grid](*args, **sizes, **product, SHARED=shared, num_warps=4)
    # 4. snapshots
    if chunks.num_snapshots:
        mine = snapshots[chunks.first_snapshot :]
        grid = (chunks.num_snapshots, heads, p_tiles * n_tiles)
        args = (x, dt, b, decay, states, ssm, chunks.blocks, mine, *strides)
        snapshot[grid](*args, **sizes, **product)


@triton.jit
def step(
    x,  # [T, H, P], contiguous but for the first axis, as b and c
    dt,  # [T, H], contiguous but for the first axis
    a,  # [H]
    b,  # [T, G, N]
    c,  # [T, G, N]
    ssm,  # [slots, H, P, N] float32
    y,  # [T, H, P] float32
    rows,  # [D, 4]
    snapshots,  # [S, 4]
    x_stride,
    dt_stride,
    b_stride,
    c_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,  # heads that share b and c
    P: tl.constexpr,
    N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,  # at least N
):
    """Grid (D, H, P / BLOCK_P): rows with one token."""
    row, head = tl.program_id(0), tl.program_id(1)
    source = tl.load(rows + row * 4).to(tl.int64)
    target = tl.load(rows + row * 4 + 1).to(tl.int64)
    first = tl.load(rows + row * 4 + 2)
    end = tl.load(rows + row * 4 + 3)
    p = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    mask = (p < P)[:, None] & (n < N)[None, :]
    at = head * P * N + p[:, None] * N + n[None, :]
    h = tl.load(ssm + source * (H * P * N) + at, mask=mask & (source >= 0), other=0)
    token = row.to(tl.int64)
    rate = tl.load(dt + token * dt_stride + head).to(tl.float32)
    u = tl.load(x + token * x_stride + head * P + p, mask=p < P, other=0).to(tl.float32) * rate
    inward = tl.load(b + token * b_stride + head // GROUP * N + n, mask=n < N, other=0).to(tl.float32)
    outward = tl.load(c + token * c_stride + head // GROUP * N + n, mask=n < N, other=0).to(tl.float32)
    h = h * tl.exp(rate * tl.load(a + head)) + u[:, None] * inward[None, :]
    tl.store(ssm + target * (H * P * N) + at, h, mask=mask & (target >= 0))
    for i in range(first, end):
        tl.store(ssm + tl.load(snapshots + i * 4).to(tl.int64) * (H * P * N) + at, h, mask=mask)
    tl.store(y + token * (H * P) + head * P + p, tl.sum(h * outward[None, :], 1), mask=p < P)


@triton.jit
def _added(
    x,
    b,
    tokens,  # [Q] int64
    weight,  # [Q] of each token, 0 where there is none
    present,  # [Q]
    head,
    p,  # [BLOCK_P]
    n,  # [BLOCK_N]
    x_stride,
    b_stride,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """[BLOCK_P, BLOCK_N]: the sum of weight x (outer) b over the tokens of a block."""
    x_at = x + tokens[None, :] * x_stride + head * P + p[:, None]
    inputs = tl.load(x_at, mask=present[None, :] & (p < P)[:, None], other=0).to(tl.float32) * weight[None, :]
    b_at = b + tokens[:, None] * b_stride + head // GROUP * N + n[None, :]
    maps = tl.load(b_at, mask=present[:, None] & (n < N)[None, :], other=0)
    return tl.dot(inputs.to(PRODUCT), maps.to(PRODUCT), input_precision="ieee")


@triton.jit
def add(
    x,  # [T, H, P], contiguous but for the first axis, as b
    dt,  # [T, H], contiguous but for the first axis
    a,  # [H]
    b,  # [T, G, N]
    decay,  # [B, H, Q] float32, log of the decay from the block's start to the token: written
    states,  # [B, H, P, N] float32: written
    blocks,  # [B, 5]
    x_stride,
    dt_stride,
    b_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Grid (B, H, tiles of P and N): what the tokens of one block add to the state after it."""
    block, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(blocks + block * 5 + 1)
    t = tl.arange(0, Q)
    present = t < tl.load(blocks + block * 5 + 2)
    tokens = (token + t).to(tl.int64)
    # tokens that are not there have step size 0: they neither decay nor add
    rate = tl.load(dt + tokens * dt_stride + head, mask=present, other=0).to(tl.float32)
    change = rate * tl.load(a + head)
    since_start = tl.cumsum(change, 0)
    at = block.to(tl.int64) * H + head
    if tile == 0:
        tl.store(decay + at * Q + t, since_start)
    weight = rate * tl.exp(tl.minimum(tl.sum(change, 0) - since_start, 0.0))
    p = tile // tl.cdiv(N, BLOCK_N) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tile % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    added = _added(x, b, tokens, weight, present, head, p, n, x_stride, b_stride, GROUP, P, N, PRODUCT)
    mask = (p < P)[:, None] & (n < N)[None, :]
    tl.store(states + at * (P * N) + p[:, None] * N + n[None, :], added, mask=mask)


@triton.jit
def carry(
    states,  # [B, H, SIZE] float32: what each block adds; becomes the state before it
    decay,  # [B, H, Q] float32
    ssm,  # [slots, H, SIZE] float32
    rows,  # [R, 8]
    H: tl.constexpr,
    SIZE: tl.constexpr,
    Q: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (R, H, SIZE / BLOCK): from block to block of a row, and its final state."""
    row, head = tl.program_id(0), tl.program_id(1)
    source = tl.load(rows + row * 8).to(tl.int64)
    target = tl.load(rows + row * 8 + 1).to(tl.int64)
    first = tl.load(rows + row * 8 + 4)
    end = tl.load(rows + row * 8 + 5)
    i = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = i < SIZE
    h = tl.load(ssm + (source * H + head) * SIZE + i, mask=inside & (source >= 0), other=0)
    for block in range(first, end):
        at = tl.cast(block, tl.int64) * H + head
        added = tl.load(states + at * SIZE + i, mask=inside, other=0)
        tl.store(states + at * SIZE + i, h, mask=inside)
        h = h * tl.exp(tl.load(decay + at * Q + Q - 1)) + added
    tl.store(ssm + (target * H + head) * SIZE + i, h, mask=inside & (target >= 0))


@triton.jit
def read(
    x,  # [T, H, P], contiguous but for the first axis, as b and c
    dt,  # [T, H], contiguous but for the first axis
    b,  # [T, G, N]
    c,  # [T, G, N]
    decay,  # [B, H, Q] float32
    states,  # [B, H, P, N] float32, before each block
    y,  # [T, H, P] float32
    blocks,  # [B, 5]
    x_stride,
    dt_stride,
    b_stride,
    c_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRODUCT: tl.constexpr,
    SHARED: tl.constexpr,  # heads of a program, of one group
):
    """Grid (B, H / SHARED, P / BLOCK_P): y_i = exp(decay_i) c_i . h + sum over j <= i of (c_i . b_j) decay_ij dt_j x_j."""
    block = tl.program_id(0)
    group = tl.program_id(1) * SHARED // GROUP
    token = tl.load(blocks + block * 5 + 1)
    t = tl.arange(0, Q)
    present = t < tl.load(blocks + block * 5 + 2)
    tokens = (token + t).to(tl.int64)
    p = tl.program_id(2) * BLOCK_P + tl.arange(0, BLOCK_P)
    # 1. products of c and b, the same for all heads of the group
    scores = tl.zeros([Q, Q], tl.float32)
    for start in tl.static_range(0, N, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        c_at = c + tokens[:, None] * c_stride + group * N + n[None, :]
        outward = tl.load(c_at, mask=present[:, None] & (n < N)[None, :], other=0).to(PRODUCT)
        b_at = b + tokens[None, :] * b_stride + group * N + n[:, None]
        inward = tl.load(b_at, mask=present[None, :] & (n < N)[:, None], other=0).to(PRODUCT)
        scores = tl.dot(outward, inward, scores, input_precision="ieee")
    for index in range(SHARED):
        head = tl.program_id(1) * SHARED + index
        at = tl.cast(block, tl.int64) * H + head
        # 2. the share of earlier blocks
        carried = tl.zeros([Q, BLOCK_P], tl.float32)
        for start in tl.static_range(0, N, BLOCK_N):
            n = start + tl.arange(0, BLOCK_N)
            c_at = c + tokens[:, None] * c_stride + group * N + n[None, :]
            outward = tl.load(c_at, mask=present[:, None] & (n < N)[None, :], other=0).to(PRODUCT)
            before_at = states + at * (P * N) + p[None, :] * N + n[:, None]
            before = tl.load(before_at, mask=(p < P)[None, :] & (n < N)[:, None], other=0).to(PRODUCT)
            carried = tl.dot(outward, before, carried, input_precision="ieee")
        since_start = tl.load(decay + at * Q + t)
        # 3. that of the block's own tokens
        between = tl.where(t[:, None] >= t[None, :], since_start[:, None] - since_start[None, :], float("-inf"))
        rate = tl.load(dt + tokens * dt_stride + head, mask=present, other=0).to(tl.float32)
        weight = scores * tl.exp(between) * rate[None, :]
        x_at = x + tokens[:, None] * x_stride + head * P + p[None, :]
        mask = present[:, None] & (p < P)[None, :]
        inputs = tl.load(x_at, mask=mask, other=0).to(PRODUCT)
        total = carried * tl.exp(since_start)[:, None]
        total = tl.dot(weight.to(PRODUCT), inputs, total, input_precision="ieee")
        tl.store(y + tokens[:, None] * (H * P) + head * P + p[None, :], total, mask=mask)


@triton.jit
def snapshot(
    x,  # [T, H, P], contiguous but for the first axis, as b
    dt,  # [T, H], contiguous but for the first axis
    b,  # [T, G, N]
    decay,  # [B, H, Q] float32
    states,  # [B, H, P, N] float32, before each block
    ssm,  # [slots, H, P, N] float32
    blocks,  # [B, 5]
    snapshots,  # [S, 4], those of chunks
    x_stride,
    dt_stride,
    b_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    Q: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Grid (S, H, tiles of P and N): the block's start, decayed, plus what its tokens up to the snapshot add."""
    index, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(snapshots + index * 4).to(tl.int64)
    block = tl.load(snapshots + index * 4 + 2)
    last = tl.load(snapshots + index * 4 + 3)
    t = tl.arange(0, Q)
    present = t <= last
    tokens = (tl.load(blocks + block * 5 + 1) + t).to(tl.int64)
    at = block.to(tl.int64) * H + head
    until = tl.load(decay + at * Q + last)
    rate = tl.load(dt + tokens * dt_stride + head, mask=present, other=0).to(tl.float32)
    since = tl.load(decay + at * Q + t, mask=present, other=0)
    weight = tl.where(present, rate * tl.exp(until - since), 0.0)
    p = tile // tl.cdiv(N, BLOCK_N) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tile % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    added = _added(x, b, tokens, weight, present, head, p, n, x_stride, b_stride, GROUP, P, N, PRODUCT)
    mask = (p < P)[:, None] & (n < N)[None, :]
    place = p[:, None] * N + n[None, :]
    before = tl.load(states + at * (P * N) + place, mask=mask, other=0)
    tl.store(ssm + (slot * H + head) * (P * N) + place, before * tl.exp(until) + added, mask=mask)
