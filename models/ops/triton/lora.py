"""Low-rank changes by adapters: tokens lie in blocks that share one, whose rank units are read where they lie.

Reference: `ops/lora.py`. What an adapter does not change at a site (`LoraSite.live`) is seen on the device: tables are
uploaded once for all sites.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hybrid.pools.specs import LORA_RANK_UNIT

from ...lora_site import LoraSite
from ..lora_tables import Groups, LoraTables
from ..transfer import upload
from .device import num_programs, product_dtype

TILE = 16  # rank rows of a product, the fewest that `tl.dot` takes: two rank units
LEAST_STEPS = 2  # of a sum over inputs that is cut so that more programs share it
WIDE = 128  # columns that a program of `lora_expand` makes


@triton.jit
def rank_units(units, adapter, tile, most, UNIT: tl.constexpr, TILE: tl.constexpr):
    """The unit [TILE] of each rank row of a tile, -1 where the adapter has none."""
    row = tile * TILE + tl.arange(0, TILE)
    return tl.load(units + adapter * most + row // UNIT, mask=row // UNIT < most, other=-1)


@triton.jit(do_not_specialize=["num_tokens", "most", "steps"])
def lora_shrink(
    x,  # [T, SIZE], contiguous but for the first axis
    a,  # [units, UNIT, SIZE]
    live,  # [units]
    low,  # [splits, num_tokens, tiles * TILE]
    blocks,  # [B, 3] adapter (-1: nobody's), first of its tokens, number of tokens
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
    if adapter < 0:
        return
    if tl.load(live + tl.load(units + adapter * most).to(tl.int64)) == 0:
        return
    unit = rank_units(units, adapter, tl.program_id(1), most, UNIT, TILE)
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
    if adapter < 0:
        return
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
        unit = rank_units(units, adapter, tile, most, UNIT, TILE)
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
    """The tokens of one batch that have an adapter; see LoraTables."""

    sizes: LoraTables
    blocks: torch.Tensor
    tokens: torch.Tensor
    units: torch.Tensor
    adapters: torch.Tensor

    @classmethod
    def plan(cls, groups: Groups, num_tokens: int, device: torch.device) -> "TritonLora":
        """Of a batch of so many tokens, some of which have an adapter."""
        sizes = LoraTables.of(groups, num_tokens)
        return cls(sizes, *sizes.views(upload(sizes.filled(groups), device)))

    def add(self, site: LoraSite, x: torch.Tensor, out: torch.Tensor) -> None:
        """See `LoraBatch.add`."""
        if x.stride(-1) != 1:
            x = x.contiguous()
        step = 256 // site.a.element_size()  # inputs
        steps, tiles = triton.cdiv(site.inputs, step), self.num_tiles
        splits = max(1, num_programs(x.device) // (self.sizes.busy_blocks * tiles))
        steps_per_split = max(LEAST_STEPS, triton.cdiv(steps, splits))
        splits = triton.cdiv(steps, steps_per_split)
        low = torch.empty((splits, self.sizes.num_changed, tiles * TILE), dtype=torch.float32, device=x.device)
        lora_shrink[(self.sizes.num_blocks, tiles, splits)](
            x,
            site.a,
            site.live,
            low,
            self.blocks,
            self.tokens,
            self.units,
            self.sizes.num_changed,
            self.sizes.most_units,
            x.stride(0),
            steps_per_split,
            SIZE=site.inputs,
            UNIT=LORA_RANK_UNIT,
            TILE=TILE,
            BLOCK=self.sizes.block_size,
            IN=step,
            PRODUCT=product_dtype(site.a.dtype),
        )
        self._expand(site, low, None, splits, out)

    def add_rows(self, site: LoraSite, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """See `LoraBatch.add_rows`."""
        self._expand(site, site.a, token_ids, 1, out)

    @property
    def num_tiles(self) -> int:
        return -(-self.sizes.most_units * LORA_RANK_UNIT // TILE)

    def _expand(
        self, site: LoraSite, low: torch.Tensor, token_ids: torch.Tensor | None, splits: int, out: torch.Tensor
    ) -> None:
        """Mutates out."""
        assert out.stride(-1) == 1
        wide = max(TILE, min(WIDE, triton.next_power_of_2(site.outputs)))
        lora_expand[(self.sizes.num_blocks, triton.cdiv(site.outputs, wide))](
            low,
            low if token_ids is None else token_ids,
            site.b,
            site.live,
            out,
            self.blocks,
            self.tokens,
            self.units,
            self.sizes.num_changed,
            self.sizes.most_units,
            self.num_tiles,
            splits,
            site.inputs,
            site.offset,
            out.stride(0),
            SIZE=site.outputs,
            UNIT=LORA_RANK_UNIT,
            TILE=TILE,
            BLOCK=self.sizes.block_size,
            WIDE=wide,
            TABLE=token_ids is not None,
            PRODUCT=product_dtype(site.b.dtype),
        )
