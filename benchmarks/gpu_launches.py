"""Launch: a kernel as it was compiled, and its grid, on a machine without a GPU; `compiling` keeps them from running.

Tensors may be without values ("meta"). Knows no kernel. Not under TRITON_INTERPRET.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: Any  # what Triton compiled; equal launches have the same one
    grid: tuple[int, ...]

    @property
    def programs(self) -> int:
        return functools.reduce(int.__mul__, self.grid)


@dataclass(frozen=True, slots=True)
class Driver:
    """What compilation asks of a driver. arch: compute capability, 90 for 9.0."""

    arch: int

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.arch  # what is compiled is kept per device

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Pointer:
    """Stands for a tensor without values, whose own data_ptr says nothing of how a view is aligned."""

    dtype: torch.dtype
    offset: int

    def data_ptr(self) -> int:
        return self.offset


def _argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == "meta":
        return Pointer(value.dtype, int(value.storage_offset()) * value.element_size())
    return value


@contextmanager
def compiling(arch: int) -> Iterator[list[Launch]]:
    """Meanwhile Triton's launches compile for that GPU and run nothing. The list grows by them."""
    launches: list[Launch] = []
    run = JITFunction.run

    @functools.wraps(run)
    def compile_it(self: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> Any:
        kernel = run(self, *map(_argument, args), grid=grid, warmup=True, **options)
        launches.append(Launch(kernel, grid))
        return kernel

    triton.runtime.driver.set_active(Driver(arch))
    with patch.object(JITFunction, "run", compile_it):
        yield launches
