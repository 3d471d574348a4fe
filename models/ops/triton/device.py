"""What launches need of a device: whether kernels run there, indices on it, how many programs fill it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton import knobs

from ...context import Ints

ALIGNMENT = 4  # elements of 32 bits; 16 bytes, as kernels are compiled anew for pointers that are less aligned
PROGRAMS_PER_PROCESSOR = 4
LEAST_SHARED_MEMORY = 99 * 1024  # bytes that a program has on every GPU since sm_80
INTERPRETED_PROCESSORS = 16  # what a CPU stands for


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter: TRITON_INTERPRET=1 in the environment when triton is imported."""
    return bool(knobs.runtime.interpret)


def check(device: torch.device) -> None:
    """ValueError where kernels cannot run."""
    if device.type != "cuda" and not interpreted():
        raise ValueError(
            f"HYBRID_OPS='triton' on {device.type!r}: outside CUDA, Triton's kernels run in its interpreter only, with "
            "TRITON_INTERPRET=1 set before triton is imported"
        )


@cache
def num_programs(device: torch.device) -> int:
    """Programs that keep the device busy."""
    if device.type != "cuda":
        return PROGRAMS_PER_PROCESSOR * INTERPRETED_PROCESSORS
    return PROGRAMS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    if device.type != "cuda":
        return LEAST_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", LEAST_SHARED_MEMORY))  # ROCm does not say


def product_dtype(dtype: torch.dtype) -> Any:
    """In what `tl.dot` multiplies operands of `dtype`; the interpreter knows no bfloat16 products."""
    if interpreted() or dtype == torch.float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


def upload(arrays: Sequence[Ints], device: torch.device) -> list[torch.Tensor]:
    """All as int32 on the device, in one copy that nobody waits for. Every value fits int32."""
    starts = np.cumsum([0, *(-(-array.size // ALIGNMENT) * ALIGNMENT for array in arrays)])
    host = torch.empty(int(starts[-1]), dtype=torch.int32, pin_memory=device.type == "cuda")
    filled = host.numpy()
    for start, array in zip(starts, arrays):
        filled[start : start + array.size] = array.reshape(-1)
    moved = host.to(device, non_blocking=True)
    return [moved[start : start + array.size].view(array.shape) for start, array in zip(starts.tolist(), arrays)]
