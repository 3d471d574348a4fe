"""RMSNorm in one pass, with or without a residual that is added first. Reference: `ops/elementwise.py`."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import torch
import triton
import triton.language as tl

ELEMENTS = 1024  # of short rows that one program takes


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm(
    x,  # rows of SIZE elements, INNER of them per step of x_stride, row_stride apart
    added,  # [num_rows, SIZE]
    weight,  # [SIZE], or [INNER, SIZE]
    total,  # [num_rows, SIZE]
    out,  # rows as x has them, or x itself
    num_rows,
    x_stride,
    row_stride,
    out_stride,
    out_row_stride,
    alpha,
    eps,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,  # per program
    WEIGHT: tl.constexpr,
    WEIGHT_PER_ROW: tl.constexpr,
    ADD: tl.constexpr,
):
    """Grid (num_rows / ROWS): total = x + alpha added; out = total / sqrt(mean(total ** 2) + eps) * weight."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, PADDED)
    mask = (row < num_rows)[:, None] & (i < SIZE)[None, :]
    start = (row // INNER).to(tl.int64) * x_stride + (row % INNER) * row_stride
    flat = row.to(tl.int64)[:, None] * SIZE + i[None, :]
    values = tl.load(x + start[:, None] + i[None, :], mask=mask, other=0).to(tl.float32)
    if ADD:
        values += alpha * tl.load(added + flat, mask=mask, other=0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + flat, rounded, mask=mask)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 1) / SIZE + eps)
    values = values * scale[:, None]
    if WEIGHT:
        at = i[None, :] + (row % INNER)[:, None] * SIZE if WEIGHT_PER_ROW else i[None, :]
        values = values * tl.load(weight + at, mask=mask if WEIGHT_PER_ROW else (i < SIZE)[None, :], other=0)
    target = (row // INNER).to(tl.int64) * out_stride + (row % INNER) * out_row_stride
    tl.store(out + target[:, None] + i[None, :], values.to(out.dtype.element_ty), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, groups: int) -> torch.Tensor:
    """See `elementwise.rms_norm`."""
    grouped = x if groups == 1 else x.unflatten(-1, (groups, -1))
    if grouped.ndim > 3 or grouped.stride(-1) != 1:
        grouped = grouped.contiguous().view(-1, *grouped.shape[-2:])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(grouped, None, weight, None, out.view(grouped.shape), 0.0, eps, groups > 1)
    return out


def rms_norm_(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    """See `elementwise.rms_norm_`."""
    _launch(x, None, weight, None, x, 0.0, eps, False)


def add_rms_norm(
    x: torch.Tensor, added: torch.Tensor, alpha: float, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `elementwise.add_rms_norm`."""
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, added.contiguous(), weight, total, out, alpha, eps, False)
    return total, out


def _launch(
    x: torch.Tensor,  # [rows, size] or [rows, inner, size]
    added: torch.Tensor | None,
    weight: torch.Tensor | None,
    total: torch.Tensor | None,
    out: torch.Tensor,
    alpha: float,
    eps: float,
    weight_per_row: bool,
) -> None:
    """Mutates total and out."""
    inner, size = (1, x.shape[1]) if x.ndim == 2 else x.shape[1:]
    num_rows = x.shape[0] * inner
    padded = triton.next_power_of_2(size)
    rows = max(1, ELEMENTS // padded)
    _rms_norm[(triton.cdiv(num_rows, rows),)](
        x,
        x if added is None else added,
        x if weight is None else weight,
        out if total is None else total,
        out,
        num_rows,
        x.stride(0),
        x.stride(-2),
        out.stride(0),
        out.stride(-2),
        alpha,
        eps,
        INNER=inner,
        SIZE=size,
        PADDED=padded,
        ROWS=rows,
        WEIGHT=weight is not None,
        WEIGHT_PER_ROW=weight_per_row,
        ADD=added is not None,
        num_warps=min(16, max(1, padded * rows // 512)),
    )
