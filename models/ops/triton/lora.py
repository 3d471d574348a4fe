"""Low-rank changes by adapters: tokens lie in blocks that share one, whose rank units are read where they lie.

Reference: `ops/lora.py`. What an adapter does not change at a site (`LoraSite.live`) is seen on the device: tables are
uploaded once for all sites.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from hybrid.pools.specs import LORA_RANK_UNIT

from ...context import Ints
from ...lora_site import LoraSite
from .device import num_programs, product_dtype, upload

TILE = 16  # rank rows of a product, the fewest that `tl.dot` takes: two rank units
BLOCKS = (16, 64)  # tokens of a block, where no adapter has more than the first, and else
LEAST_STEPS = 2  # of a sum over inputs that is cut so that more programs share it
WIDE = 128  # columns that a program of `lora_expand` makes


@triton.jit
def _rank_units(units, adapter, tile, most, UNIT: tl.constexpr, TILE: tl.constexpr):
    """The unit [TILE] of each rank row of a tile, -1 where the adapter has none."""
    row = tile * TILE + tl.arange(0, TILE)
    return tl.load(units + adapter * most + row // UNIT, mask=row // UNIT < most, other=-1)


@triton.jit(do_not_specialize=["num_tokens", "most", "steps"])
def lora_shrink(
    x,  # [T, SIZE], contiguous but for the first axis
    a,  # [units, UNIT, SIZE]
    live,  # [units]
    low,  # [splits, num_tokens, tiles * TILE]
    blocks,  # [B, 3] adapter, first of its tokens, number of tokens
    tokens,  # [num_tokens] by adapter
    units,  # [adapters, most]
    num_tokens,
    most,
    x_stride,
    steps,  # of IN inputs, per split
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    IN: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Grid (B, tiles, splits): low = x . a, of a split's inputs only."""
    adapter = tl.load(blocks + tl.program_id(0) * 3)
    if tl.load(live + tl.load(units + adapter * most).to(tl.int64)) == 0:
        return
    unit = _rank_units(units, adapter, tl.program_id(1), most, UNIT, TILE)
    if tl.max(unit, 0) < 0:
        return
    first = tl.load(blocks + tl.program_id(0) * 3 + 1)
    count = tl.load(blocks + tl.program_id(0) * 3 + 2)
    r = tl.arange(0, TILE)
    t = tl.arange(0, BLOCK)
    token = tl.load(tokens + first + t, mask=t < count, other=0).to(tl.int64)
    row = unit.to(tl.int64) * UNIT + r % UNIT
    total = tl.zeros([BLOCK, TILE], tl.float32)
    begin = tl.program_id(2) * steps * IN
    for step in range(0, steps):
        i = begin + step * IN + tl.arange(0, IN)
        inside = i < SIZE
        at = x + token[:, None] * x_stride + i[None, :]
        inputs = tl.load(at, mask=(t < count)[:, None] & inside[None, :], other=0)
        at = a + row[None, :] * SIZE + i[:, None]
        inward = tl.load(at, mask=(unit >= 0)[None, :] & inside[:, None], other=0)
        inputs = inputs.to(a.dtype.element_ty).to(PRODUCT)
        total = tl.dot(inputs, inward.to(PRODUCT), total, input_precision="tf32x3")
    place = (tl.program_id(2) * num_tokens + first + t).to(tl.int64) * (tl.num_programs(1) * TILE)
    column = tl.program_id(1) * TILE + r
    tl.store(low + place[:, None] + column[None, :], total, mask=(t < count)[:, None])


@triton.jit(do_not_specialize=["num_tokens", "most", "tiles", "splits"])
def lora_expand(
    low,  # [splits, num_tokens, tiles * TILE]; of a table: a [units, inputs, UNIT]
    ids,  # [T] what tokens look up in a table
    b,  # [units, UNIT, SIZE]
    live,  # [units]
    out,  # [T, *], contiguous but for the first axis
    blocks,  # [B, 3]
    tokens,  # [num_tokens]
    units,  # [adapters, most]
    num_tokens,
    most,
    tiles,
    splits,
    inputs,  # of a table
    offset,
    out_stride,
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    TABLE: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Grid (B, SIZE / WIDE): out += low . b in columns from `offset`; every token lies in one block."""
    adapter = tl.load(blocks + tl.program_id(0) * 3)
    if tl.load(live + tl.load(units + adapter * most).to(tl.int64)) == 0:
        return
    first = tl.load(blocks + tl.program_id(0) * 3 + 1)
    count = tl.load(blocks + tl.program_id(0) * 3 + 2)
    r = tl.arange(0, TILE)
    t = tl.arange(0, BLOCK)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    token = tl.load(tokens + first + t, mask=t < count, other=0).to(tl.int64)
    total = tl.zeros([BLOCK, WIDE], tl.float32)
    for tile in range(0, tiles):
        unit = _rank_units(units, adapter, tile, most, UNIT, TILE)
        if tl.max(unit, 0) >= 0:
            held = (t < count)[:, None] & (unit >= 0)[None, :]
            if TABLE:
                looked_up = tl.load(ids + token, mask=t < count, other=0).to(tl.int64)
                at = low + (unit.to(tl.int64)[None, :] * inputs + looked_up[:, None]) * UNIT + (r % UNIT)[None, :]
                inner = tl.load(at, mask=held, other=0).to(tl.float32)
            else:
                inner = tl.zeros([BLOCK, TILE], tl.float32)
                for split in range(0, splits):
                    place = (split * num_tokens + first + t).to(tl.int64) * (tiles * TILE)
                    inner += tl.load(low + place[:, None] + (tile * TILE + r)[None, :], mask=held, other=0)
            at = b + (unit.to(tl.int64) * UNIT + r % UNIT)[:, None] * SIZE + c[None, :]
            outward = tl.load(at, mask=(unit >= 0)[:, None] & (c < SIZE)[None, :], other=0).to(PRODUCT)
            total = tl.dot(inner.to(PRODUCT), outward, total, input_precision="tf32x3")
    at = out + token[:, None] * out_stride + offset + c[None, :]
    inside = (t < count)[:, None] & (c < SIZE)[None, :]
    total += tl.load(at, mask=inside, other=0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class TritonLora:
    """The tokens of one batch that have an adapter; on the device but for the numbers."""

    num_tokens: int
    num_blocks: int
    block_size: int
    most: int  # rank units of an adapter
    blocks: torch.Tensor  # [B, 3] adapter, first of its tokens, number of tokens
    tokens: torch.Tensor  # [num_tokens] by adapter
    units: torch.Tensor  # [adapters, most], -1 behind the last

    @classmethod
    def plan(cls, groups: Sequence[tuple[Ints, Ints]], device: torch.device) -> "TritonLora":
        """groups: per adapter its tokens and its rank units; at least one of each."""
        counts = np.array([len(tokens) for tokens, _ in groups])
        size = BLOCKS[int(counts.max() > BLOCKS[0])]
        per_adapter = -(-counts // size)
        adapter = np.repeat(np.arange(len(groups)), per_adapter)
        done = (np.arange(len(adapter)) - (np.cumsum(per_adapter) - per_adapter)[adapter]) * size
        first = (np.cumsum(counts) - counts)[adapter] + done
        blocks = np.stack((adapter, first, np.minimum(size, counts[adapter] - done)), axis=1)
        table = np.full((len(groups), max(len(units) for _, units in groups)), -1, dtype=np.int64)
        for row, (_, units) in enumerate(groups):
            table[row, : len(units)] = units
        arrays = upload((blocks, np.concatenate([tokens for tokens, _ in groups]), table), device)
        return cls(int(counts.sum()), len(blocks), size, table.shape[1], *arrays)

    def add(self, site: LoraSite, x: torch.Tensor, out: torch.Tensor) -> None:
        """See `LoraBatch.add`."""
        if x.stride(-1) != 1:
            x = x.contiguous()
        step = 256 // site.a.element_size()  # inputs
        steps, tiles = triton.cdiv(site.inputs, step), self._tiles
        splits = max(1, num_programs(x.device) // (self.num_blocks * tiles))
        steps_per_split = max(LEAST_STEPS, triton.cdiv(steps, splits))
        splits = triton.cdiv(steps, steps_per_split)
        low = torch.empty((splits, self.num_tokens, tiles * TILE), dtype=torch.float32, device=x.device)
        lora_shrink[(self.num_blocks, tiles, splits)](
            x,
            site.a,
            site.live,
            low,
            self.blocks,
            self.tokens,
            self.units,
            self.num_tokens,
            self.most,
            x.stride(0),
            steps_per_split,
            SIZE=site.inputs,
            UNIT=LORA_RANK_UNIT,
            TILE=TILE,
            BLOCK=self.block_size,
            IN=step,
            PRODUCT=product_dtype(site.a.dtype),
        )
        self._expand(site, low, None, splits, out)

    def add_rows(self, site: LoraSite, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """See `LoraBatch.add_rows`."""
        self._expand(site, site.a, token_ids, 1, out)

    @property
    def _tiles(self) -> int:
        return -(-self.most * LORA_RANK_UNIT // TILE)

    def _expand(
        self, site: LoraSite, low: torch.Tensor, token_ids: torch.Tensor | None, splits: int, out: torch.Tensor
    ) -> None:
        """Mutates out."""
        assert out.stride(-1) == 1
        wide = max(TILE, min(WIDE, triton.next_power_of_2(site.outputs)))
        lora_expand[(self.num_blocks, triton.cdiv(site.outputs, wide))](
            low,
            low if token_ids is None else token_ids,
            site.b,
            site.live,
            out,
            self.blocks,
            self.tokens,
            self.units,
            self.num_tokens,
            self.most,
            self._tiles,
            splits,
            site.inputs,
            site.offset,
            out.stride(0),
            SIZE=site.outputs,
            UNIT=LORA_RANK_UNIT,
            TILE=TILE,
            BLOCK=self.block_size,
            WIDE=wide,
            TABLE=token_ids is not None,
            PRODUCT=product_dtype(site.b.dtype),
        )
