"""Launches: which kernels would be compiled, in which variants, found by Triton's own key and with nothing run."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from hybrid.models.ops.triton import norm

TARGET = GPUTarget("cuda", 90, 32)
Variant = tuple[str, str]  # a kernel, and what it is compiled for


@cache
def _binder(kernel: Any) -> Any:
    """What `JITFunction.run` computes keys with, for a kernel that is interpreted."""
    made = JITFunction(kernel.fn, **{key: value for key, value in kernel.kwargs.items() if key.startswith("do_not")})
    return create_function_from_signature(made.signature, made.params, make_backend(TARGET))


def variant(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Variant:
    """Of one launch."""
    _, specialization, others = _binder(kernel)(*args, **options)
    return kernel.fn.__name__, f"{specialization} {sorted(others.items())}"


@contextmanager
def launches() -> Iterator[set[Variant]]:
    """Inside, launches are noted and run nothing."""
    noted: set[Variant] = set()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        noted.add(variant(self, args, options))
        for argument in args:  # of these the host makes token ids
            if isinstance(argument, torch.Tensor) and argument.dtype == torch.float64:
                argument.zero_()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(norm._rms_norm), "run", run)
        yield noted
