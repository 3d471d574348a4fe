"""Kernels of the scan of Mamba-2. Symbols, passes and their order: see `ssd`; tables: `recurrent_tables`."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import triton
import triton.language as tl


@triton.jit
def ssd_step(
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
    return tl.dot(inputs.to(PRODUCT), maps.to(PRODUCT), input_precision="tf32x3")


@triton.jit
def ssd_add(
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
def ssd_carry(
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
def ssd_read(
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
    """Grid (B, H / SHARED, P / BLOCK_P): y_i = exp(decay_i) c_i . h + sum over j <= i of (c_i . b_j) exp(decay_ij) dt_j
    x_j."""
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
        scores = tl.dot(outward, inward, scores, input_precision="tf32x3")
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
            carried = tl.dot(outward, before, carried, input_precision="tf32x3")
        since_start = tl.load(decay + at * Q + t)
        # 3. that of the block's own tokens
        between = tl.where(t[:, None] >= t[None, :], since_start[:, None] - since_start[None, :], float("-inf"))
        rate = tl.load(dt + tokens * dt_stride + head, mask=present, other=0).to(tl.float32)
        weight = scores * tl.exp(between) * rate[None, :]
        x_at = x + tokens[:, None] * x_stride + head * P + p[None, :]
        mask = present[:, None] & (p < P)[None, :]
        inputs = tl.load(x_at, mask=mask, other=0).to(PRODUCT)
        total = carried * tl.exp(since_start)[:, None]
        total = tl.dot(weight.to(PRODUCT), inputs, total, input_precision="tf32x3")
        tl.store(y + tokens[:, None] * (H * P) + head * P + p[None, :], total, mask=mask)


@triton.jit
def ssd_snapshot(
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
