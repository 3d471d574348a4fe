"""Kernels of paged attention: keys and values into blocks, attention of query tiles, and the sum of split tiles.

T tokens; a tile is some queries of one row, with all heads of one key-value head, over some keys. Which keys a query
sees is one range of positions per query; windows, causality and images that see themselves are ranges. Softmax is
computed as in Dao et al. 2022, "FlashAttention" (online, by powers of two); splits as in "Flash-Decoding" (2023).
Reference: `ops/attention.py`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import triton
import triton.language as tl


@triton.jit
def write(
    key_value,  # [T, 2, kv heads, HEAD], contiguous but for the first axis
    kv,  # [blocks, 2, kv heads, BLOCK_SIZE, HEAD]
    slots,  # [T] int32, block * BLOCK_SIZE + offset; negative: nowhere
    token_stride,
    block_stride,
    NUM_PARTS: tl.constexpr,  # 2 * kv heads
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PARTS: tl.constexpr,  # heads per program
):
    """Grid (T, NUM_PARTS / PARTS): keys and values of a token into its slot."""
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    part = tl.program_id(1) * PARTS + tl.arange(0, PARTS)
    d = tl.arange(0, HEAD_PADDED)
    mask = (part < NUM_PARTS)[:, None] & (d < HEAD)[None, :] & (slot >= 0)
    source = key_value + token.to(tl.int64) * token_stride + part[:, None] * HEAD + d[None, :]
    block = (slot // BLOCK_SIZE).to(tl.int64)
    target = kv + block * block_stride + (part[:, None] * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD + d[None, :]
    tl.store(target, tl.load(source, mask=mask), mask=mask)


@triton.jit
def _attend_to(
    begin,
    end,
    limit,  # end of all keys of the tile
    q,  # [BLOCK_M, HEAD_PADDED]
    keys,  # pointer to this head's keys in block 0
    table,  # pointer to the row's blocks
    lowest,  # [BLOCK_M] first position that is seen
    highest,  # [BLOCK_M] the one after the last
    greatest,  # [BLOCK_M] score so far
    total,  # [BLOCK_M] of weights so far
    summed,  # [BLOCK_M, HEAD_PADDED] weighted values so far
    block_stride,
    scale,
    softcap,
    NUM_KV_HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,  # whether some query does not see some key
):
    """Keys begin .. end - 1, in steps of BLOCK_N: greatest, total and summed with them."""
    d = tl.arange(0, HEAD_PADDED)
    inside = d < HEAD
    for start in range(begin, end, BLOCK_N):
        position = start + tl.arange(0, BLOCK_N)
        if MASKED:  # keys of other tokens or of nobody are never loaded
            present = position < limit
            block = tl.load(table + position // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
            key_mask, value_mask = present[None, :] & inside[:, None], present[:, None] & inside[None, :]
        else:
            block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
            key_mask, value_mask = inside[:, None], inside[None, :]
        at = keys + block * block_stride + (position % BLOCK_SIZE) * HEAD
        key = tl.load(at[None, :] + d[:, None], mask=key_mask, other=0).to(q.dtype)
        scores = tl.dot(q, key, input_precision="ieee") * scale
        if SOFTCAP:
            scores = softcap * (2 * tl.sigmoid(2 * scores) - 1)
        if MASKED:
            visible = (position[None, :] >= lowest[:, None]) & (position[None, :] < highest[:, None])
            scores = tl.where(visible & present[None, :], scores, float("-inf"))
        now = tl.maximum(greatest, tl.max(scores, 1))
        base = tl.where(now == float("-inf"), 0.0, now) if MASKED else now  # nothing seen yet
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(greatest - base)
        value_at = at[:, None] + NUM_KV_HEADS * BLOCK_SIZE * HEAD + d[None, :]
        value = tl.load(value_at, mask=value_mask, other=0).to(q.dtype)
        summed = tl.dot(weights.to(q.dtype), value, summed * kept[:, None], input_precision="ieee")
        total = total * kept + tl.sum(weights, 1)
        greatest = now
    return greatest, total, summed


@triton.jit(do_not_specialize=["table_stride"])
def attend(
    query,  # [T, heads, HEAD], contiguous but for the first axis
    kv,  # [blocks, 2, kv heads, BLOCK_SIZE, HEAD]
    out,  # [T, heads, HEAD]; SPLIT: sums [tiles, queries per tile, heads, HEAD] float32
    totals,  # SPLIT: [tiles, queries per tile, heads, 2] float32, greatest score and sum of weights
    sinks,  # [heads]
    table,  # [rows, blocks] int32
    first,  # [T] int32, first position that the token sees
    ends,  # [T] int32, the one after the last
    tiles,  # [tiles, 8] int32: row, first token, number of queries, first key, first and end of the keys that all
    # queries see (whole BLOCK_Ns), end of keys, whether sinks count here
    query_stride,
    table_stride,
    block_stride,
    scale,  # of products; with SOFTCAP divided by the cap, else times log2 e
    softcap,  # times log2 e
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # heads per key-value head
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,  # per tile
    BLOCK_M: tl.constexpr,  # queries times heads
    BLOCK_N: tl.constexpr,  # keys
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLIT: tl.constexpr,
    PRODUCT: tl.constexpr,  # dtype of products
):
    """Grid (tiles, NUM_KV_HEADS): out, or a split's part of it, of the tile's queries."""
    # 1. the tile
    tile, head = tl.program_id(0), tl.program_id(1)
    entry = tiles + tile * 8
    row, token, count = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    begin, full_begin = tl.load(entry + 3), tl.load(entry + 4)
    full_end, end = tl.load(entry + 5), tl.load(entry + 6)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD_PADDED)
    in_tile, head_of = m // GROUP, head * GROUP + m % GROUP
    valid = in_tile < count
    tokens = (token + in_tile).to(tl.int64)
    mask = valid[:, None] & (d < HEAD)[None, :]
    q = tl.load(query + tokens[:, None] * query_stride + head_of[:, None] * HEAD + d[None, :], mask=mask, other=0)
    q = q.to(PRODUCT)
    lowest = tl.load(first + tokens, mask=valid, other=0)
    highest = tl.load(ends + tokens, mask=valid, other=0)
    # 2. its keys: some seen, all seen, some seen
    greatest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    summed = tl.zeros([BLOCK_M, HEAD_PADDED], tl.float32)
    if SINKS:
        here = tl.load(entry + 7) > 0
        sink = tl.load(sinks + head_of, mask=valid, other=0).to(tl.float32) * 1.4426950408889634
        greatest = tl.where(here, sink, greatest)
        total = tl.where(here, 1.0, total)
    keys = kv + head * BLOCK_SIZE * HEAD
    blocks = table + row.to(tl.int64) * table_stride
    if WINDOW:
        greatest, total, summed = _attend_to(
            begin, full_begin, end, q, keys, blocks, lowest, highest, greatest, total, summed, block_stride, scale,
            softcap, NUM_KV_HEADS, HEAD, HEAD_PADDED, BLOCK_SIZE, BLOCK_N, SOFTCAP, True,
        )  # fmt: skip
    greatest, total, summed = _attend_to(
        full_begin, full_end, end, q, keys, blocks, lowest, highest, greatest, total, summed, block_stride, scale,
        softcap, NUM_KV_HEADS, HEAD, HEAD_PADDED, BLOCK_SIZE, BLOCK_N, SOFTCAP, False,
    )  # fmt: skip
    greatest, total, summed = _attend_to(
        full_end, end, end, q, keys, blocks, lowest, highest, greatest, total, summed, block_stride, scale,
        softcap, NUM_KV_HEADS, HEAD, HEAD_PADDED, BLOCK_SIZE, BLOCK_N, SOFTCAP, True,
    )  # fmt: skip
    # 3. the result, or this split's part of it
    if SPLIT:
        place = (tile * QUERIES + in_tile).to(tl.int64) * (NUM_KV_HEADS * GROUP) + head_of
        tl.store(totals + place * 2, greatest, mask=valid)
        tl.store(totals + place * 2 + 1, total, mask=valid)
        tl.store(out + place[:, None] * HEAD + d[None, :], summed, mask=mask)
    else:
        place = tokens * (NUM_KV_HEADS * GROUP) + head_of
        total = tl.where(valid, total, 1.0)
        tl.store(out + place[:, None] * HEAD + d[None, :], summed / total[:, None], mask=mask)


@triton.jit(do_not_specialize=["begin"])
def combine(
    sums,  # [tiles, queries per tile, heads, HEAD] float32
    totals,  # [tiles, queries per tile, heads, 2] float32
    out,  # [T, heads, HEAD]
    splits,  # [tokens, 2] int32: place [tile, query] in the first split, number of splits
    begin,  # token of splits[0]
    NUM_HEADS: tl.constexpr,
    QUERIES: tl.constexpr,  # per tile
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,  # at a time
):
    """Grid (tokens, NUM_HEADS): what the splits of a token's tile found, as one softmax."""
    token, head = tl.program_id(0), tl.program_id(1)
    place = tl.load(splits + token * 2)
    count = tl.load(splits + token * 2 + 1)
    d = tl.arange(0, HEAD_PADDED)
    greatest = tl.max(tl.full([SPLITS], float("-inf"), tl.float32), 0)
    total = tl.sum(tl.zeros([SPLITS], tl.float32), 0)
    summed = tl.zeros([HEAD_PADDED], tl.float32)
    for start in range(0, count, SPLITS):
        split = start + tl.arange(0, SPLITS)
        present = split < count
        at = (place + split * QUERIES).to(tl.int64) * NUM_HEADS + head
        score = tl.load(totals + at * 2, mask=present, other=float("-inf"))
        weight = tl.load(totals + at * 2 + 1, mask=present, other=0)
        part = tl.load(sums + at[:, None] * HEAD + d[None, :], mask=present[:, None] & (d < HEAD)[None, :], other=0)
        now = tl.maximum(greatest, tl.max(score, 0))
        base = tl.where(now == float("-inf"), 0.0, now)
        share, kept = tl.exp2(score - base), tl.exp2(greatest - base)
        total = total * kept + tl.sum(weight * share, 0)
        summed = summed * kept + tl.sum(part * share[:, None], 0)
        greatest = now
    target = out + ((begin + token).to(tl.int64) * NUM_HEADS + head) * HEAD + d
    tl.store(target, summed / total, mask=d < HEAD)
