"""The causal depthwise convolution of recurrent layers by Triton's kernels, over a mixed batch.

T tokens, C channels, TAIL = kernel - 1. A state is the last TAIL inputs, oldest first. Sums are in float32.
Tables: `recurrent_tables`. Reference: `ops/conv.py`.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import torch
import triton
import triton.language as tl
from triton import cdiv, next_power_of_2

from .device import stride_unit
from .recurrent_tables import RecurrentTables

CHANNELS = 256  # per program, of rows with one token and of states
CHUNK_ELEMENTS = 4096  # per program, of chunks


def decodes(
    tables: RecurrentTables,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """The rows with one token of x [T, C], weight [TAIL + 1, C], bias [C] -> out [T, C]; advances conv [slots, TAIL, C]
    and writes its snapshots."""
    rows, channels = tables.decodes, x.shape[1]
    assert rows is not None and _is_fit(x, weight, conv)
    wide, unit = _wide(channels), stride_unit(x)
    conv_step[(rows.num_rows, cdiv(channels, wide))](
        *(x, weight, weight if bias is None else bias, conv, out, rows.rows, tables.snapshots, x.stride(0) // unit),
        **{"UNIT": unit, "C": channels, "TAIL": conv.shape[1], "HAS_BIAS": bias is not None, "WIDE": wide},
        num_warps=1,
    )
    return out


def chunks(
    tables: RecurrentTables,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """The rows with several tokens, otherwise as `decodes`."""
    rows, channels = tables.chunks, x.shape[1]
    assert rows is not None and _is_fit(x, weight, conv)
    some, unit = min(_wide(channels), max(16, CHUNK_ELEMENTS // rows.block_size)), stride_unit(x)
    conv_chunk[(rows.num_blocks, cdiv(channels, some))](
        *(x, weight, weight if bias is None else bias, conv, out, rows.rows, rows.blocks, x.stride(0) // unit),
        **{"UNIT": unit, "C": channels, "TAIL": conv.shape[1], "HAS_BIAS": bias is not None},
        **{"Q": rows.block_size, "WIDE": some},
    )
    keep(tables, x, conv)
    return out


def keep(tables: RecurrentTables, x: torch.Tensor, conv: torch.Tensor) -> None:
    """Mutates conv: what the rows with several tokens leave behind, once all who read their states have done so."""
    rows, channels = tables.chunks, x.shape[1]
    assert rows is not None
    wide, unit = _wide(channels), stride_unit(x)
    conv_keep[(rows.num_rows, cdiv(channels, wide))](
        *(x, conv, rows.rows, tables.snapshots, x.stride(0) // unit),
        **{"UNIT": unit, "C": channels, "TAIL": conv.shape[1], "WIDE": wide},
        num_warps=1,
    )


def _wide(channels: int) -> int:
    return min(CHANNELS, int(next_power_of_2(channels)))


def _is_fit(x: torch.Tensor, weight: torch.Tensor, conv: torch.Tensor) -> bool:
    return x.stride(1) == 1 and weight.is_contiguous() and conv.is_contiguous()


@triton.jit
def conv_step(
    x,  # [T, C], contiguous but for the first axis
    weight,  # [TAIL + 1, C]
    bias,  # [C]
    conv,  # [slots, TAIL, C]
    out,  # [T, C]
    rows,  # [D, 4]
    snapshots,  # [S, 4]
    x_stride,  # in UNITs
    UNIT: tl.constexpr,
    C: tl.constexpr,
    TAIL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,  # channels
):
    """Grid (D, C / WIDE): rows with one token."""
    row = tl.program_id(0)
    source = tl.load(rows + row * 4).to(tl.int64)
    target = tl.load(rows + row * 4 + 1).to(tl.int64)
    first = tl.load(rows + row * 4 + 2)
    end = tl.load(rows + row * 4 + 3)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = c < C
    now = tl.load(x + row.to(tl.int64) * (x_stride * UNIT) + c, mask=inside, other=0)
    total = now.to(tl.float32) * tl.load(weight + TAIL * C + c, mask=inside, other=0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + c, mask=inside, other=0).to(tl.float32)
    for k in tl.static_range(TAIL):
        past = tl.load(conv + (source * TAIL + k) * C + c, mask=inside & (source >= 0), other=0)
        total += past.to(tl.float32) * tl.load(weight + k * C + c, mask=inside, other=0).to(tl.float32)
        if k > 0:  # every thread has read what it overwrites
            tl.store(conv + (target * TAIL + k - 1) * C + c, past, mask=inside & (target >= 0))
            for i in range(first, end):
                slot = tl.load(snapshots + i * 4).to(tl.int64)
                tl.store(conv + (slot * TAIL + k - 1) * C + c, past, mask=inside)
    if TAIL > 0:
        tl.store(conv + (target * TAIL + TAIL - 1) * C + c, now.to(conv.dtype.element_ty), mask=inside & (target >= 0))
        for i in range(first, end):
            slot = tl.load(snapshots + i * 4).to(tl.int64)
            tl.store(conv + (slot * TAIL + TAIL - 1) * C + c, now.to(conv.dtype.element_ty), mask=inside)
    tl.store(out + row.to(tl.int64) * C + c, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def conv_chunk(
    x,  # [T, C], contiguous but for the first axis
    weight,  # [TAIL + 1, C]
    bias,  # [C]
    conv,  # [slots, TAIL, C]
    out,  # [T, C]
    rows,  # [R, 8]
    blocks,  # [B, 5]
    x_stride,  # in UNITs
    UNIT: tl.constexpr,
    C: tl.constexpr,
    TAIL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    Q: tl.constexpr,  # tokens of a block
    WIDE: tl.constexpr,  # channels
):
    """Grid (B, C / WIDE): the tokens of one block; states stay as they are."""
    block = tl.program_id(0)
    row = tl.load(blocks + block * 5)
    token = tl.load(blocks + block * 5 + 1)
    count = tl.load(blocks + block * 5 + 2)
    source = tl.load(rows + row * 8).to(tl.int64)
    begin = tl.load(rows + row * 8 + 6)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    t = tl.arange(0, Q)
    inside = (c < C)[None, :] & (t < count)[:, None]
    total = tl.zeros([Q, WIDE], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + c, mask=c < C, other=0).to(tl.float32)[None, :]
    for k in tl.static_range(TAIL + 1):
        factor = tl.load(weight + k * C + c, mask=c < C, other=0).to(tl.float32)[None, :]
        at = token - begin + t - (TAIL - k)  # place in the chunk; below 0: in the state
        tokens = (begin + at).to(tl.int64)
        seen = tl.load(x + tokens[:, None] * (x_stride * UNIT) + c[None, :], mask=inside & (at >= 0)[:, None], other=0)
        total += seen.to(tl.float32) * factor
        if k < TAIL and token == begin and source >= 0:
            past = conv + (source * TAIL + TAIL + at)[:, None] * C + c[None, :]
            total += tl.load(past, mask=inside & (at < 0)[:, None], other=0).to(tl.float32) * factor
    tokens = (token + t).to(tl.int64)
    tl.store(out + tokens[:, None] * C + c[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def conv_keep(
    x,  # [T, C], contiguous but for the first axis
    conv,  # [slots, TAIL, C]
    rows,  # [R, 8]
    snapshots,  # [S, 4]
    x_stride,  # in UNITs
    UNIT: tl.constexpr,
    C: tl.constexpr,
    TAIL: tl.constexpr,
    WIDE: tl.constexpr,  # channels
):
    """Grid (R, C / WIDE): a row's last TAIL inputs, at its snapshots and at its end, which overwrites what is read."""
    row = tl.program_id(0)
    source = tl.load(rows + row * 8).to(tl.int64)
    target = tl.load(rows + row * 8 + 1).to(tl.int64)
    first = tl.load(rows + row * 8 + 2)
    end = tl.load(rows + row * 8 + 3)
    token = tl.load(rows + row * 8 + 6).to(tl.int64)
    count = tl.load(rows + row * 8 + 7)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = c < C
    for i in range(first, end + 1):
        slot, length = target, count
        if i < end:
            slot = tl.load(snapshots + i * 4).to(tl.int64)
            length = tl.load(snapshots + i * 4 + 1)
        for k in tl.static_range(TAIL):  # oldest first: none is read after it was overwritten
            at = length - TAIL + k
            fresh = tl.load(x + (token + at) * (x_stride * UNIT) + c, mask=inside & (at >= 0), other=0)
            past = conv + (source * TAIL + TAIL + at) * C + c
            kept = tl.load(past, mask=inside & (at < 0) & (source >= 0), other=0)
            value = tl.where(at >= 0, fresh.to(conv.dtype.element_ty), kept)
            tl.store(conv + (slot * TAIL + k) * C + c, value, mask=inside & (slot >= 0))
