"""Routed experts by Triton's kernels: one product into all experts and one out of them, whatever tokens chose.

Symbols: see `ops/experts.py`, the reference; a choice is a token and one of its experts, N = T K choices in all.

1. Choices are ordered by expert and cut into blocks of one expert each. All of that stays on the device: the grids of
the products have as many blocks as there could be, and empty ones end at once.
2. Into the experts, with the activation; rows lie in the order of step 1.
3. Out of them, times the router's weights, back to where the choices came from.
4. The sum over each token's choices, in their order: no atomics, so that results do not change from run to run.

Where adapters change the experts, what choices' inputs are at the adapters' ranks is computed before either product,
which then adds what comes of it (`expert_lora`).
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

from typing import Any

import torch
import triton
import triton.language as tl

from ..experts import GPT_OSS_LIMIT, GPT_OSS_SWISH, ExpertChanges, ExpertStacks
from .activation import activated
from .device import product_dtype
from .expert_lora import adapters_of, add_low_rank, arguments

TILES = (256, 4096)  # choices that a program of `route` looks at together, where there are no more, and else
BLOCKS = (16, 128)  # choices of a block: the fewest that `tl.dot` takes, and the most
WIDE = 128  # rows of weights that a program multiplies with
STEP_BYTES = 128  # of a row, per step of a product
LIMIT = tl.constexpr(GPT_OSS_LIMIT)
SWISH = tl.constexpr(GPT_OSS_SWISH)


@triton.jit(do_not_specialize=["num_choices", "block_size"])
def route(
    chosen,  # [num_choices] expert of each
    order,  # [num_choices] choices by expert
    blocks,  # [num_choices / block_size + EXPERTS, 3] expert, first of its choices in `order`, number of choices
    num_choices,
    block_size,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Grid (EXPERTS): an expert's choices in order, and its blocks; there is room for all, and some are empty."""
    expert = tl.program_id(0)
    t = tl.arange(0, TILE)
    before = tl.zeros([TILE], tl.int32)
    mine = tl.zeros([TILE], tl.int32)
    for start in range(0, num_choices, TILE):
        found = tl.load(chosen + start + t, mask=start + t < num_choices, other=EXPERTS)
        before += (found < expert).to(tl.int32)
        mine += (found == expert).to(tl.int32)
    first = tl.sum(before, 0)
    count = tl.sum(mine, 0)
    place = first
    for start in range(0, num_choices, TILE):
        found = tl.load(chosen + start + t, mask=start + t < num_choices, other=EXPERTS) == expert
        so_far = tl.cumsum(found.to(tl.int32), 0)
        tl.store(order + place + so_far - 1, start + t, mask=found)
        place += tl.sum(found.to(tl.int32), 0)
    # experts before this one have at most as many blocks as their choices fill together, and one more each
    begin = first // block_size + expert
    for block in range(begin, (first + count) // block_size + expert + 1):
        done = (block - begin) * block_size
        tl.store(blocks + block * 3, expert)
        tl.store(blocks + block * 3 + 1, first + done)
        tl.store(blocks + block * 3 + 2, tl.maximum(0, tl.minimum(count - done, block_size)))


@triton.jit(do_not_specialize=["num_units", "most"])
def into_experts(
    x,  # [T, SIZE], contiguous but for the first axis
    weight,  # [E, rows, SIZE]: row STEP n is that of output n, gated: UP behind it that of its value
    bias,  # [E, rows]
    inner,  # [N, INNER] as `order` has the choices
    order,
    blocks,
    x_stride,
    low,  # what adapters change, see `expert_lora.arguments`
    lora_b,
    live,
    adapters,
    units,
    num_units,
    most,
    LORA: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    INNER: tl.constexpr,
    STEP: tl.constexpr,
    UP: tl.constexpr,  # 0: there is no gate
    KIND: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Grid (INNER / OUT, blocks): the activation of x times an expert's matrix."""
    count = tl.load(blocks + tl.program_id(1) * 3 + 2)
    if count == 0:
        return
    expert = tl.load(blocks + tl.program_id(1) * 3).to(tl.int64)
    place = (tl.load(blocks + tl.program_id(1) * 3 + 1) + tl.arange(0, BLOCK)).to(tl.int64)
    held = tl.arange(0, BLOCK) < count
    token = (tl.load(order + place, mask=held, other=0) // TOP_K).to(tl.int64)
    n = tl.program_id(0) * OUT + tl.arange(0, OUT)
    row = expert * (INNER * 2 if UP else INNER) + n * STEP
    total = tl.zeros([BLOCK, OUT], tl.float32)
    up = tl.zeros([BLOCK, OUT], tl.float32)
    for start in range(0, SIZE, IN):
        i = start + tl.arange(0, IN)
        at = x + token[:, None] * x_stride + i[None, :]
        inputs = tl.load(at, mask=held[:, None] & (i < SIZE)[None, :], other=0).to(PRODUCT)
        at = weight + row[None, :] * SIZE + i[:, None]
        mask = (n < INNER)[None, :] & (i < SIZE)[:, None]
        total = tl.dot(inputs, tl.load(at, mask=mask, other=0).to(PRODUCT), total, input_precision="tf32x3")
        if UP:
            inward = tl.load(at + UP * SIZE, mask=mask, other=0).to(PRODUCT)
            up = tl.dot(inputs, inward, up, input_precision="tf32x3")
    if BIAS:
        total += tl.load(bias + row, mask=n < INNER, other=0).to(tl.float32)[None, :]
        if UP:
            up += tl.load(bias + row + UP, mask=n < INNER, other=0).to(tl.float32)[None, :]
    if LORA:
        adapter = adapters_of(adapters, units, live, token, held, most)
        c = n * STEP
        ROWS: tl.constexpr = INNER * 2 if UP else INNER
        total = add_low_rank(
            total, low, lora_b, units, adapter, place, expert, c, n < INNER, num_units, most, ROWS, UNIT, TILE, PRODUCT
        )
        if UP:
            c += UP
            up = add_low_rank(
                up, low, lora_b, units, adapter, place, expert, c, n < INNER, num_units, most, ROWS, UNIT, TILE, PRODUCT
            )
    if KIND == "gpt_oss":  # comparisons, unlike a minimum, keep NaN
        gate = tl.where(total > LIMIT, LIMIT, total)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        made = (up + 1) * gate * tl.sigmoid(gate * SWISH)
    elif UP:
        made = activated(total, KIND) * up
    else:
        made = activated(total, KIND)
    at = inner + place[:, None] * INNER + n[None, :]
    tl.store(at, made.to(inner.dtype.element_ty), mask=held[:, None] & (n < INNER)[None, :])


@triton.jit(do_not_specialize=["num_units", "most"])
def out_of_experts(
    inner,  # [N, INNER] as `order` has the choices
    weight,  # [E, SIZE, INNER]
    bias,  # [E, SIZE]
    shares,  # [N]
    given,  # [N, SIZE]
    order,
    blocks,
    low,  # what adapters change, see `expert_lora.arguments`
    lora_b,
    live,
    adapters,
    units,
    num_units,
    most,
    LORA: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    INNER: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Grid (SIZE / OUT, blocks): inner times an expert's matrix and the choice's share."""
    count = tl.load(blocks + tl.program_id(1) * 3 + 2)
    if count == 0:
        return
    expert = tl.load(blocks + tl.program_id(1) * 3).to(tl.int64)
    place = (tl.load(blocks + tl.program_id(1) * 3 + 1) + tl.arange(0, BLOCK)).to(tl.int64)
    held = tl.arange(0, BLOCK) < count
    choice = tl.load(order + place, mask=held, other=0).to(tl.int64)
    n = tl.program_id(0) * OUT + tl.arange(0, OUT)
    row = expert * SIZE + n
    total = tl.zeros([BLOCK, OUT], tl.float32)
    for start in range(0, INNER, IN):
        i = start + tl.arange(0, IN)
        at = inner + place[:, None] * INNER + i[None, :]
        inputs = tl.load(at, mask=held[:, None] & (i < INNER)[None, :], other=0).to(PRODUCT)
        at = weight + row[None, :] * INNER + i[:, None]
        outward = tl.load(at, mask=(n < SIZE)[None, :] & (i < INNER)[:, None], other=0).to(PRODUCT)
        total = tl.dot(inputs, outward, total, input_precision="tf32x3")
    if BIAS:
        total += tl.load(bias + row, mask=n < SIZE, other=0).to(tl.float32)[None, :]
    if LORA:
        adapter = adapters_of(adapters, units, live, choice // TOP_K, held, most)
        total = add_low_rank(
            total, low, lora_b, units, adapter, place, expert, n, n < SIZE, num_units, most, SIZE, UNIT, TILE, PRODUCT
        )
    total *= tl.load(shares + choice, mask=held, other=0)[:, None]
    at = given + choice[:, None] * SIZE + n[None, :]
    tl.store(at, total.to(given.dtype.element_ty), mask=held[:, None] & (n < SIZE)[None, :])


@triton.jit
def sum_choices(
    given,  # [T, TOP_K, SIZE]
    out,  # [T, SIZE] float32
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (T, SIZE / BLOCK): what a token's experts gave, one after the other."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(0, TOP_K):
        total += tl.load(given + (token * TOP_K + k) * SIZE + i, mask=i < SIZE, other=0).to(tl.float32)
    tl.store(out + token * SIZE + i, total, mask=i < SIZE)


def run(
    x: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    stacks: ExpertStacks,
    changes: ExpertChanges | None = None,
) -> torch.Tensor:
    """See `experts.run`. Between the experts' two products, and behind them, values are rounded to the dtype of x."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    num_tokens, top_k = chosen.shape
    num_choices, (num_experts, size, inner_size) = chosen.numel(), stacks.down.shape
    block = max(BLOCKS[0], min(BLOCKS[1], triton.next_power_of_2(triton.cdiv(num_choices, num_experts))))
    num_blocks = num_choices // block + num_experts  # see `route`
    order = torch.empty(num_choices, dtype=torch.int32, device=x.device)
    blocks = torch.empty((num_blocks, 3), dtype=torch.int32, device=x.device)
    route[(num_experts,)](
        chosen.contiguous(),
        order,
        blocks,
        num_choices,
        block,
        EXPERTS=num_experts,
        TILE=TILES[num_choices > TILES[0]],
        num_warps=8,
    )
    options: dict[str, Any] = {
        "BLOCK": block,
        "IN": STEP_BYTES // x.element_size(),
        "PRODUCT": product_dtype(x.dtype),
        "num_warps": 8 if block == BLOCKS[1] else 4,
        "num_stages": 4 if block <= 32 else 3,  # what fits the shared memory of every device
    }
    inner = x.new_empty((num_choices, inner_size))
    wide = _wide(inner_size, WIDE // 2 if stacks.gated else WIDE)
    into_experts[(triton.cdiv(inner_size, wide), num_blocks)](
        x,
        stacks.inward,
        stacks.inward if stacks.inward_bias is None else stacks.inward_bias,
        inner,
        order,
        blocks,
        x.stride(0),
        **arguments(changes, "into", x, order, blocks, top_k, block),
        TOP_K=top_k,
        SIZE=size,
        INNER=inner_size,
        STEP=2 if stacks.interleaved else 1,
        UP=0 if not stacks.gated else 1 if stacks.interleaved else inner_size,
        KIND=stacks.activation,
        BIAS=stacks.inward_bias is not None,
        OUT=wide,
        **options,
    )
    given = x.new_empty((num_choices, size))
    wide = _wide(size, WIDE)
    out_of_experts[(triton.cdiv(size, wide), num_blocks)](
        inner,
        stacks.down,
        stacks.down if stacks.down_bias is None else stacks.down_bias,
        shares.contiguous(),
        given,
        order,
        blocks,
        **arguments(changes, "out", inner, order, blocks, top_k, block),
        TOP_K=top_k,
        SIZE=size,
        INNER=inner_size,
        BIAS=stacks.down_bias is not None,
        OUT=wide,
        **options,
    )
    out = x.new_empty((num_tokens, size), dtype=torch.float32)
    wide = min(1024, triton.next_power_of_2(size))
    sum_choices[(num_tokens, triton.cdiv(size, wide))](given, out, TOP_K=top_k, SIZE=size, BLOCK=wide)
    return out


def _wide(rows: int, most: int) -> int:
    """A power of two for the last tile of `rows` to waste little, as `tl.dot` takes it."""
    return max(16, min(most, int(triton.next_power_of_2(rows))))
