"""Launches of Triton's interpreter under a Sanitizer: loads and stores, the order of programs, sums of integers.

The interpreter runs the programs of a launch one after the other in host memory. Knows the one that constraints.txt
names, and puts back what it changes there. A pointer carries the number of its argument in bits that addresses leave.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from .sanitizer import TAG, KernelFault, Order, Sanitizer

OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@contextmanager
def sanitized(order: Order = "shuffled", most: int = 2**31 - 1) -> Iterator[Sanitizer]:
    """All launches meanwhile: the first fault of one is raised, as KernelFault. Uninitialised memory is NaN.

    most: what an int32 holds. Where that is little, few rows show which products must not be int32.
    """
    sanitizer, builder = Sanitizer(order), interpreter.interpreter_builder
    launch, patch_language = interpreter.GridExecutor.__call__, interpreter._patch_lang
    convert, load, store = interpreter._implicit_cvt, builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def call(executor: Any, *args: Any, **options: Any) -> None:
        known = {name: value for name, value in options.items() if name in executor.arg_names}
        bound = inspect.getcallargs(executor.fn, *args, **known)
        tensors = {name: value for name, value in bound.items() if isinstance(value, torch.Tensor)}
        grid = (*executor.grid, 1, 1)[:3]
        sanitizer.launch(executor.fn, tensors, grid)
        tags = iter(range(len(tensors)))
        scopes: list[Any] = []

        def tagged(value: Any) -> Any:
            converted = convert(value)
            if isinstance(value, torch.Tensor):
                converted.handle.data = converted.handle.data + np.uint64(next(tags) << TAG)
            return converted

        def scope(_: Any) -> Any:
            """One for the kernel and all functions that it calls: to make one takes long."""
            if not scopes:
                scopes.append(patch_language(SimpleNamespace(__globals__={"tl": tl, "core": tl.core})))
            return scopes[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpreter, "_implicit_cvt", tagged)
            patch.setattr(interpreter, "_patch_lang", scope)
            patch.setattr(builder, "set_grid_dim", lambda *_: setattr(builder, "grid_dim", grid))
            patch.setattr(builder, "set_grid_idx", lambda i, *_: setattr(builder, "grid_idx", sanitizer.start(i)))
            executor.grid = (prod(grid),)
            try:
                launch(executor, *args, **options)
            except InterpreterError as error:
                cause: BaseException | None = error
                while cause is not None and not isinstance(cause, KernelFault):
                    cause = cause.__cause__
                raise (error if cause is None else cause) from None

    def plain(pointers: Any) -> Any:
        return interpreter.TensorHandle(pointers.data & np.uint64((1 << TAG) - 1), pointers.dtype)

    def masked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        sanitizer.read(pointers.data, mask.data)
        return load(plain(pointers), mask, *rest)

    def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        sanitizer.write(pointers.data, mask.data)
        return store(plain(pointers), value, mask, *rest)

    def atomic_rmw(kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        sanitizer.write(pointers.data, mask.data, atomic=True)
        return rmw(kind, plain(pointers), value, mask, *rest)

    def atomic_cas(pointers: Any, *rest: Any) -> Any:
        sanitizer.write(pointers.data, np.ones(1, dtype=np.bool_), atomic=True)
        return cas(plain(pointers), *rest)

    def check(_: Any, left: Any, right: Any, operation: Any) -> None:
        """Of operands of one type, before the interpreter's own sum, difference or product."""
        kind = left.type.scalar
        if kind.int_bitwidth < 64:
            made = OPERATIONS[operation.__name__](left.handle.data.astype(np.int64), right.handle.data.astype(np.int64))
            if (
                made.max() > (most if kind == tl.int32 else kind.get_int_max_value())
                or made.min() < kind.get_int_min_value()
            ):
                sanitizer.fail(f"has an {kind} that overflows: {operation.__name__}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "__call__", call)
        patch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)  # they never left
        patch.setattr(builder, "create_masked_load", masked_load)
        patch.setattr(builder, "create_masked_store", masked_store)
        patch.setattr(builder, "create_atomic_rmw", atomic_rmw)
        patch.setattr(builder, "create_atomic_cas", atomic_cas)
        patch.setattr(builder, "create_barrier", sanitizer.barrier)
        patch.setattr(TritonSemantic, "binary_op_sanitize_overflow_impl", check)
        was = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield sanitizer
        finally:
            torch.use_deterministic_algorithms(was)
