"""An activation times what stands beside it (SiLU-and-mul and its kin) in one pass. Reference: `ops/elementwise.py`."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# Triton has no types, and reads annotations itself.

import torch
import triton
import triton.language as tl

from ...blueprint.parts import Activation

BLOCK = 1024


@triton.jit
def activated(x, KIND: tl.constexpr):
    """The activation of float32 values."""
    if KIND == "silu":
        made = x * tl.sigmoid(x)
    elif KIND == "relu2":
        made = tl.where(x < 0, 0.0, x * x)  # keeps NaN
    elif KIND == "gelu_tanh":  # (1 + tanh(y)) / 2 = sigmoid(2 y)
        made = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        made = x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    return made


@triton.jit
def _activate_and_multiply(x, out, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """Grid (rows, SIZE / BLOCK): x [rows, 2 SIZE] -> out [rows, SIZE], the first half's activation times the second."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < SIZE
    gate = tl.load(x + row * x_stride + i, mask=mask, other=0).to(tl.float32)
    up = tl.load(x + row * x_stride + SIZE + i, mask=mask, other=0).to(tl.float32)
    tl.store(out + row * SIZE + i, (activated(gate, KIND) * up).to(out.dtype.element_ty), mask=mask)


def activate_and_multiply(kind: Activation, x: torch.Tensor) -> torch.Tensor:
    """See `elementwise.activate_and_multiply`."""
    assert x.ndim == 2 and x.stride(1) == 1
    size = x.shape[1] // 2
    out = torch.empty(len(x), size, dtype=x.dtype, device=x.device)
    block = min(BLOCK, triton.next_power_of_2(size))
    _activate_and_multiply[(len(x), triton.cdiv(size, block))](x, out, x.stride(0), SIZE=size, BLOCK=block, KIND=kind)
    return out
