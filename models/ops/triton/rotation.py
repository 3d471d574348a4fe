"""Rotary position embedding in place. Reference: `ops/elementwise.py`."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import torch
import triton
import triton.language as tl

ELEMENTS = 2048  # pairs that one program turns


@triton.jit
def _rotate(
    heads,  # [T, all heads, size], contiguous but for the first axis
    cos,  # [T, HALF]
    sin,  # [T, HALF]
    token_stride,
    COUNT: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    HEADS: tl.constexpr,  # per program
    INTERLEAVED: tl.constexpr,
):
    """Grid (T, COUNT / HEADS): pairs (i, i + HALF), or (2 i, 2 i + 1), of the first COUNT heads turn."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, HALF_PADDED)
    c = tl.load(cos + token * HALF + i, mask=i < HALF, other=0).to(tl.float32)[None, :]
    s = tl.load(sin + token * HALF + i, mask=i < HALF, other=0).to(tl.float32)[None, :]
    mask = (head < COUNT)[:, None] & (i < HALF)[None, :]
    at = heads + token * token_stride + head[:, None] * SIZE + (2 * i if INTERLEAVED else i)[None, :]
    other = at + (1 if INTERLEAVED else HALF)
    first = tl.load(at, mask=mask, other=0).to(tl.float32)
    second = tl.load(other, mask=mask, other=0).to(tl.float32)
    tl.store(at, (first * c - second * s).to(heads.dtype.element_ty), mask=mask)
    tl.store(other, (second * c + first * s).to(heads.dtype.element_ty), mask=mask)


def rotate(heads: torch.Tensor, count: int, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    """See `elementwise.rotate`."""
    num_tokens, half = cos.shape
    assert heads.stride()[1:] == (heads.shape[2], 1) and cos.is_contiguous() and sin.is_contiguous()
    padded = triton.next_power_of_2(half)
    per_program = max(1, min(triton.next_power_of_2(count), ELEMENTS // padded))
    _rotate[(num_tokens, triton.cdiv(count, per_program))](
        heads,
        cos,
        sin,
        heads.stride(0),
        COUNT=count,
        SIZE=heads.shape[2],
        HALF=half,
        HALF_PADDED=padded,
        HEADS=per_program,
        INTERLEAVED=interleaved,
    )
