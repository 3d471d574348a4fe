"""Kernels of the gated delta rule. Symbols, passes and their order: see `delta_rule`; tables: `recurrent_tables`."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import triton
import triton.language as tl


@triton.jit
def delta_step(
    q,  # [T, G, K], contiguous but for the first axis, as k, v, g and beta
    k,  # [T, G, K]
    v,  # [T, H, V]
    g,  # [T, H]
    beta,  # [T, H]
    states,  # [slots, H, K, V] float32
    y,  # [T, H, V] float32
    rows,  # [D, 4]
    snapshots,  # [S, 4]
    q_stride,
    k_stride,
    v_stride,
    g_stride,
    beta_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,  # value heads per key head
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,  # at least K
    BLOCK_V: tl.constexpr,
):
    """Grid (D, H, V / BLOCK_V): rows with one token."""
    row, head = tl.program_id(0), tl.program_id(1)
    source = tl.load(rows + row * 4).to(tl.int64)
    target = tl.load(rows + row * 4 + 1).to(tl.int64)
    first = tl.load(rows + row * 4 + 2)
    end = tl.load(rows + row * 4 + 3)
    i = tl.arange(0, BLOCK_K)
    j = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask = (i < K)[:, None] & (j < V)[None, :]
    at = head * K * V + i[:, None] * V + j[None, :]
    token = row.to(tl.int64)
    s = tl.load(states + source * (H * K * V) + at, mask=mask & (source >= 0), other=0)
    key = tl.load(k + token * k_stride + head // GROUP * K + i, mask=i < K, other=0)
    query = tl.load(q + token * q_stride + head // GROUP * K + i, mask=i < K, other=0)
    value = tl.load(v + token * v_stride + head * V + j, mask=j < V, other=0)
    s = s * tl.exp(tl.load(g + token * g_stride + head))
    new = (value - tl.sum(s * key[:, None], 0)) * tl.load(beta + token * beta_stride + head)
    s += key[:, None] * new[None, :]
    tl.store(states + target * (H * K * V) + at, s, mask=mask & (target >= 0))
    for index in range(first, end):
        tl.store(states + tl.load(snapshots + index * 4).to(tl.int64) * (H * K * V) + at, s, mask=mask)
    tl.store(y + token * (H * V) + head * V + j, tl.sum(s * query[:, None], 0), mask=j < V)


@triton.jit
def _inverse(system, SIZE: tl.constexpr):
    """(1 + system)^-1 of a strictly lower triangular system [SIZE, SIZE], by substitution."""
    i = tl.arange(0, SIZE)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for row in range(1, SIZE):
        factors = tl.sum(tl.where((i == row)[:, None], system, 0.0), 0)  # [SIZE], by column
        solved = tl.sum(factors[:, None] * inverse, 0)
        inverse = tl.where((i == row)[:, None], inverse - solved[None, :], inverse)
    return inverse


@triton.jit
def delta_solve(
    k,  # [T, G, K], contiguous but for the first axis, as v, g and beta
    v,  # [T, H, V]
    g,  # [T, H]
    beta,  # [T, H]
    decay,  # [B, H, Q] float32, log of the decay from the block's start to the token: written
    new,  # [B, H, Q, V] float32: written
    reads,  # [B, H, Q, K] float32: written
    blocks,  # [B, 5]
    k_stride,
    v_stride,
    g_stride,
    beta_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    Q: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr,  # at least K
    BLOCK_V: tl.constexpr,
):
    """Grid (B, H): new values n of a block that starts from s: n = new - reads @ s.

    (1 + A) n = beta (v - exp(decay) k s) with A_ij = beta_i exp(decay_ij) k_i . k_j for j < i. Tokens that are not
    there have keys and beta 0.
    """
    block, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(blocks + block * 5 + 1)
    count = tl.load(blocks + block * 5 + 2)
    t = tl.arange(0, Q)
    tokens = (token + t).to(tl.int64)
    i = tl.arange(0, BLOCK_K)
    at = (block.to(tl.int64) * H + head) * Q
    since_start = tl.cumsum(tl.load(g + tokens * g_stride + head, mask=t < count, other=0), 0)
    tl.store(decay + at + t, since_start)
    tl.debug_barrier()  # threads read below what others wrote
    mine = head // GROUP * K
    key_at = k + tokens[None, :] * k_stride + mine + i[:, None]
    keys = tl.load(key_at, mask=(t < count)[None, :] & (i < K)[:, None], other=0)  # [K, Q]
    for start in range(0, Q, 16):
        # 1. a strip of the system: its tokens against all of the block
        r = start + tl.arange(0, 16)
        strip = (token + r).to(tl.int64)
        present = r < count
        own_at = k + strip[:, None] * k_stride + mine + i[None, :]
        own = tl.load(own_at, mask=present[:, None] & (i < K)[None, :], other=0)
        share = tl.load(beta + strip * beta_stride + head, mask=present, other=0)
        since = tl.load(decay + at + r)
        between = tl.where(r[:, None] > t[None, :], since[:, None] - since_start[None, :], float("-inf"))
        system = tl.dot(own, keys, input_precision=PRECISION) * tl.exp(between) * share[:, None]
        # 2. the strip's own part, inverted
        between = tl.where(r[:, None] > r[None, :], since[:, None] - since[None, :], float("-inf"))
        diagonal = tl.dot(own, tl.trans(own), input_precision=PRECISION) * tl.exp(between) * share[:, None]
        inverse = _inverse(diagonal, 16)
        # 3. right sides, less what the strips before contribute
        earlier = tl.where((t < start)[None, :], system, 0.0)
        for first in range(0, V, BLOCK_V):
            j = first + tl.arange(0, BLOCK_V)
            v_at = v + strip[:, None] * v_stride + head * V + j[None, :]
            right = tl.load(v_at, mask=present[:, None] & (j < V)[None, :], other=0) * share[:, None]
            solved_at = new + (at + t)[:, None] * V + j[None, :]
            solved = tl.load(solved_at, mask=(t < start)[:, None] & (j < V)[None, :], other=0)
            right -= tl.dot(earlier, solved, input_precision=PRECISION)
            result = tl.dot(inverse, right, input_precision=PRECISION)
            tl.store(new + (at + r)[:, None] * V + j[None, :], result, mask=(j < V)[None, :])
        right = own * (share * tl.exp(since))[:, None]
        solved_at = reads + (at + t)[:, None] * K + i[None, :]
        solved = tl.load(solved_at, mask=(t < start)[:, None] & (i < K)[None, :], other=0)
        right -= tl.dot(earlier, solved, input_precision=PRECISION)
        result = tl.dot(inverse, right, input_precision=PRECISION)
        tl.store(reads + (at + r)[:, None] * K + i[None, :], result, mask=(i < K)[None, :])
        tl.debug_barrier()


@triton.jit
def delta_carry(
    k,  # [T, G, K], contiguous but for the first axis
    decay,  # [B, H, Q] float32
    new,  # [B, H, Q, V] float32: becomes the new values
    reads,  # [B, H, Q, K] float32
    before,  # [B, H, K, V] float32: written
    states,  # [slots, H, K, V] float32
    rows,  # [R, 8]
    blocks,  # [B, 5]
    k_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    Q: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr,  # at least K
    BLOCK_V: tl.constexpr,
):
    """Grid (R, H, V / BLOCK_V): from block to block of a row, and its final state."""
    row, head = tl.program_id(0), tl.program_id(1)
    source = tl.load(rows + row * 8).to(tl.int64)
    target = tl.load(rows + row * 8 + 1).to(tl.int64)
    first = tl.load(rows + row * 8 + 4)
    end = tl.load(rows + row * 8 + 5)
    t, i = tl.arange(0, Q), tl.arange(0, BLOCK_K)
    j = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask = (i < K)[:, None] & (j < V)[None, :]
    place = i[:, None] * V + j[None, :]
    s = tl.load(states + (source * H + head) * (K * V) + place, mask=mask & (source >= 0), other=0)
    for block in range(first, end):
        at = tl.cast(block, tl.int64) * H + head
        tl.store(before + at * (K * V) + place, s, mask=mask)
        reads_at = reads + (at * Q + t)[:, None] * K + i[None, :]
        lost = tl.dot(tl.load(reads_at, mask=(i < K)[None, :], other=0), s, input_precision=PRECISION)
        new_at = new + (at * Q + t)[:, None] * V + j[None, :]
        values = tl.load(new_at, mask=(j < V)[None, :], other=0) - lost
        tl.store(new_at, values, mask=(j < V)[None, :])
        tokens = (tl.load(blocks + block * 5 + 1) + t).to(tl.int64)
        present = t < tl.load(blocks + block * 5 + 2)
        until = tl.load(decay + at * Q + Q - 1)
        share = tl.exp(tl.minimum(until - tl.load(decay + at * Q + t), 0.0))
        key_at = k + tokens[None, :] * k_stride + head // GROUP * K + i[:, None]
        keys = tl.load(key_at, mask=present[None, :] & (i < K)[:, None], other=0) * share[None, :]
        s = tl.dot(keys, values, s * tl.exp(until), input_precision=PRECISION)
    tl.store(states + (target * H + head) * (K * V) + place, s, mask=mask & (target >= 0))


@triton.jit
def delta_read(
    q,  # [T, G, K], contiguous but for the first axis, as k
    k,  # [T, G, K]
    decay,  # [B, H, Q] float32
    new,  # [B, H, Q, V] float32
    before,  # [B, H, K, V] float32
    y,  # [T, H, V] float32
    blocks,  # [B, 5]
    q_stride,
    k_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    Q: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr,  # at least K
    BLOCK_V: tl.constexpr,
):
    """Grid (B, H, V / BLOCK_V): y_i = exp(decay_i) q_i s + sum over j <= i of (q_i . k_j) exp(decay_ij) n_j."""
    block, head = tl.program_id(0), tl.program_id(1)
    t, i = tl.arange(0, Q), tl.arange(0, BLOCK_K)
    j = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    tokens = (tl.load(blocks + block * 5 + 1) + t).to(tl.int64)
    present = t < tl.load(blocks + block * 5 + 2)
    at = block.to(tl.int64) * H + head
    mine = head // GROUP * K
    q_at = q + tokens[:, None] * q_stride + mine + i[None, :]
    query = tl.load(q_at, mask=present[:, None] & (i < K)[None, :], other=0)
    key_at = k + tokens[None, :] * k_stride + mine + i[:, None]
    keys = tl.load(key_at, mask=present[None, :] & (i < K)[:, None], other=0)
    since_start = tl.load(decay + at * Q + t)
    between = tl.where(t[:, None] >= t[None, :], since_start[:, None] - since_start[None, :], float("-inf"))
    weight = tl.dot(query, keys, input_precision=PRECISION) * tl.exp(between)
    start_at = before + at * (K * V) + i[:, None] * V + j[None, :]
    start = tl.load(start_at, mask=(i < K)[:, None] & (j < V)[None, :], other=0)
    total = tl.dot(query, start, input_precision=PRECISION) * tl.exp(since_start)[:, None]
    values = tl.load(new + (at * Q + t)[:, None] * V + j[None, :], mask=(j < V)[None, :], other=0)
    total = tl.dot(weight, values, total, input_precision=PRECISION)
    y_at = y + tokens[:, None] * (H * V) + head * V + j[None, :]
    tl.store(y_at, total, mask=present[:, None] & (j < V)[None, :])


@triton.jit
def delta_snapshot(
    k,  # [T, G, K], contiguous but for the first axis
    decay,  # [B, H, Q] float32
    new,  # [B, H, Q, V] float32
    before,  # [B, H, K, V] float32
    states,  # [slots, H, K, V] float32
    blocks,  # [B, 5]
    snapshots,  # [S, 4], those of chunks
    k_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    Q: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr,  # at least K
    BLOCK_V: tl.constexpr,
):
    """Grid (S, H, V / BLOCK_V): the block's start, decayed, plus what its tokens up to the snapshot add."""
    index, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(snapshots + index * 4).to(tl.int64)
    block = tl.load(snapshots + index * 4 + 2)
    last = tl.load(snapshots + index * 4 + 3)
    t, i = tl.arange(0, Q), tl.arange(0, BLOCK_K)
    j = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    present = t <= last
    tokens = (tl.load(blocks + block * 5 + 1) + t).to(tl.int64)
    at = block.to(tl.int64) * H + head
    until = tl.load(decay + at * Q + last)
    since = tl.load(decay + at * Q + t, mask=present, other=float("inf"))  # what comes later counts nothing
    key_at = k + tokens[None, :] * k_stride + head // GROUP * K + i[:, None]
    keys = tl.load(key_at, mask=present[None, :] & (i < K)[:, None], other=0) * tl.exp(until - since)[None, :]
    values = tl.load(new + (at * Q + t)[:, None] * V + j[None, :], mask=present[:, None] & (j < V)[None, :], other=0)
    place = i[:, None] * V + j[None, :]
    mask = (i < K)[:, None] & (j < V)[None, :]
    start = tl.load(before + at * (K * V) + place, mask=mask, other=0)
    s = tl.dot(keys, values, start * tl.exp(until), input_precision=PRECISION)
    tl.store(states + (slot * H + head) * (K * V) + place, s, mask=mask)
