"""What adapters change of routed experts: low-rank products beside those of `experts`, for choices in its order.

A block of choices shares an expert, and may hold tokens of several adapters: one product for each that is there, which
the device alone knows. Reference: `ops/experts.py`. Symbols: see `triton/experts.py`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

from typing import Any, Literal

import torch
import triton
import triton.language as tl

from hybrid.pools.specs import LORA_RANK_UNIT

from ..experts import ExpertChanges
from .device import product_dtype
from .lora import TILE, rank_units

NOBODY = tl.constexpr(2**30)  # behind all adapters
STEP_BYTES = 128  # of a row, per step of a product


@triton.jit
def adapters_of(adapters, units, live, token, held, most):
    """The adapter [BLOCK] of each choice, NOBODY where it changes nothing at the site."""
    adapter = tl.load(adapters + token, mask=held, other=-1)
    first = tl.load(units + adapter * most, mask=adapter >= 0, other=0).to(tl.int64)
    changes = tl.load(live + first, mask=adapter >= 0, other=0)
    return tl.where((adapter >= 0) & (changes != 0), adapter, NOBODY)


@triton.jit
def add_low_rank(
    total,  # [BLOCK, OUT]
    low,  # [N, most * UNIT in whole tiles]
    b,  # [E, num_units, UNIT, ROWS]
    units,
    adapter,  # [BLOCK] see `adapters_of`
    place,  # [BLOCK] in `low`
    expert,
    column,  # [OUT] of b
    inside,  # [OUT]
    num_units,
    most,
    ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """total + low . b of each choice's adapter."""
    r = tl.arange(0, TILE)
    tiles = (most * UNIT + TILE - 1) // TILE
    turn = tl.min(adapter, 0)
    while turn < NOBODY:
        mine = adapter == turn
        for tile in range(0, tiles):
            unit = rank_units(units, turn, tile, most, UNIT, TILE)
            if tl.max(unit, 0) >= 0:
                at = low + place[:, None] * (tiles * TILE) + (tile * TILE + r)[None, :]
                inner = tl.load(at, mask=mine[:, None] & (unit >= 0)[None, :], other=0)
                at = b + ((expert * num_units + unit) * UNIT + r % UNIT)[:, None] * ROWS + column[None, :]
                outward = tl.load(at, mask=(unit >= 0)[:, None] & inside[None, :], other=0)
                total = tl.dot(inner.to(PRODUCT), outward.to(PRODUCT), total, input_precision="tf32x3")
        adapter = tl.where(mine, NOBODY, adapter)
        turn = tl.min(adapter, 0)
    return total


@triton.jit(do_not_specialize=["num_units", "most"])
def shrink_choices(
    x,  # [T, SIZE], or not FROM_TOKENS: [N, SIZE] as `order` has the choices; contiguous but for the first axis
    a,  # [E, num_units, UNIT, SIZE]
    live,  # [num_units]
    low,  # [N, tiles * TILE] as `order` has the choices
    order,
    blocks,
    adapters,  # [T] of each token, -1 where it has none
    units,  # [adapters, most]
    x_stride,
    num_units,
    most,
    FROM_TOKENS: tl.constexpr,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    IN: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Grid (tiles, blocks): low = x . a of each choice's expert and adapter; nothing where it has none."""
    count = tl.load(blocks + tl.program_id(1) * 3 + 2)
    if count == 0:
        return
    expert = tl.load(blocks + tl.program_id(1) * 3).to(tl.int64)
    place = (tl.load(blocks + tl.program_id(1) * 3 + 1) + tl.arange(0, BLOCK)).to(tl.int64)
    held = tl.arange(0, BLOCK) < count
    token = (tl.load(order + place, mask=held, other=0) // TOP_K).to(tl.int64)
    adapter = adapters_of(adapters, units, live, token, held, most)
    source = token if FROM_TOKENS else place
    r = tl.arange(0, TILE)
    turn = tl.min(adapter, 0)
    while turn < NOBODY:
        mine = adapter == turn
        unit = rank_units(units, turn, tl.program_id(0), most, UNIT, TILE)
        if tl.max(unit, 0) >= 0:
            total = tl.zeros([BLOCK, TILE], tl.float32)
            for start in range(0, SIZE, IN):
                i = start + tl.arange(0, IN)
                at = x + source[:, None] * x_stride + i[None, :]
                inputs = tl.load(at, mask=mine[:, None] & (i < SIZE)[None, :], other=0)
                at = a + ((expert * num_units + unit) * UNIT + r % UNIT)[None, :] * SIZE + i[:, None]
                inward = tl.load(at, mask=(unit >= 0)[None, :] & (i < SIZE)[:, None], other=0)
                inputs = inputs.to(a.dtype.element_ty).to(PRODUCT)
                total = tl.dot(inputs, inward.to(PRODUCT), total, input_precision="tf32x3")
            at = low + place[:, None] * (tl.num_programs(0) * TILE) + (tl.program_id(0) * TILE + r)[None, :]
            tl.store(at, total, mask=mine[:, None])
        adapter = tl.where(mine, NOBODY, adapter)
        turn = tl.min(adapter, 0)


def arguments(
    changes: ExpertChanges | None,
    which: Literal["into", "out"],
    x: torch.Tensor,
    order: torch.Tensor,
    blocks: torch.Tensor,
    top_k: int,
    block: int,
) -> dict[str, Any]:
    """What a product with the experts takes to add what adapters change of it. x: its inputs, of tokens where it leads
    into the experts, else of choices as `order` has them.

    low: the inputs at each choice's adapter's ranks. Without LORA no adapter changes anything, and nothing is read.
    """
    sizes = {"UNIT": LORA_RANK_UNIT, "TILE": TILE}
    site = None if changes is None else changes.into if which == "into" else changes.out
    if changes is None or site is None or not changes.lora.concerns(site):
        unread = {"low": x, "lora_b": x, "live": order, "adapters": order, "units": order, "num_units": 0, "most": 0}
        return unread | sizes | {"LORA": False}
    plan, (_, num_units) = changes.lora.kernels(x.device), site.a.shape[:2]
    low = torch.empty((len(order), plan.num_tiles * TILE), dtype=torch.float32, device=x.device)
    tables = {"live": site.live, "adapters": plan.adapters, "units": plan.units, "num_units": num_units}
    tables["most"] = plan.sizes.most_units
    shrink_choices[(plan.num_tiles, len(blocks))](
        x,
        site.a,
        low=low,
        order=order,
        blocks=blocks,
        x_stride=x.stride(0),
        FROM_TOKENS=which == "into",
        TOP_K=top_k,
        SIZE=site.inputs,
        BLOCK=block,
        IN=STEP_BYTES // site.a.element_size(),
        PRODUCT=product_dtype(site.a.dtype),
        num_warps=8 if block > 64 else 4,
        **tables,
        **sizes,
    )
    return {"low": low, "lora_b": site.b} | tables | sizes | {"LORA": True}
