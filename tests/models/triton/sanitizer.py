"""Sanitizer of kernels in Triton's interpreter, which runs the programs of a launch one after the other in host memory.

It fails where a GPU would do anything or nothing: programs of one launch that touch what another of them writes,
threads of a program that meet without a barrier, addresses outside the tensor that the pointer was made of, integers
that overflow. Programs run in an order of its own, and memory that nobody has initialised is NaN. Knows the interpreter
of the version that constraints.txt names; not what kernels compute.
"""

import bisect
import inspect
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

TAG = 48  # bits of an address; those above hold the number of the argument it was made of
MAP_NORESERVE = 0x4000  # of Linux: memory that is not touched need not be there
Order = Literal["ascending", "descending", "shuffled"]
Int64 = NDArray[np.int64]


class KernelFault(AssertionError):
    """What a kernel did, in a sentence."""


def untouched(size: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros [size] of which only what is touched takes memory, however many they are."""
    nbytes = max(1, size) * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype)[:size]


@dataclass(slots=True)
class Shadow:
    """When each unit of a storage was last written, and first read, in a launch. Moments before it count as never."""

    unit: int = 1  # bytes
    written: NDArray[np.int32] = field(default_factory=lambda: untouched(0, np.int32))
    read: NDArray[np.int32] = field(default_factory=lambda: untouched(0, np.int32))

    def cover(self, nbytes: int, unit: int) -> None:
        self.unit = unit
        if len(self.written) * unit < nbytes:
            self.written, self.read = (untouched(-(-nbytes // unit), np.int32) for _ in range(2))


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor of a launch."""

    name: str
    tensor: torch.Tensor
    address: int  # tagged
    axes: tuple[tuple[int, int], ...]  # stride in bytes and size, the longest stride first, as few as possible
    shadow: Shadow

    def outside(self, offset: Int64) -> NDArray[np.bool_]:
        """Which offsets (bytes) are those of no element."""
        wrong = np.zeros(offset.shape, dtype=bool)
        for stride, size in self.axes:
            index = offset // stride
            wrong |= (index < 0) | (index >= size)
            offset = offset - index * stride
        return wrong | (offset != 0)


def _axes(tensor: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """See `Argument.axes`."""
    if tensor.numel() == 0:
        return ((1, 0),)
    axes = [(tensor.itemsize, 1)]
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if stride and size > 1:
            inner, count = axes[-1]
            if stride * tensor.itemsize == inner * count:
                axes[-1] = (inner, count * size)
            else:
                axes.append((stride * tensor.itemsize, size))
    return tuple(reversed(axes))


class Sanitizer:
    """The launches of one test; a moment is a program's start, or a barrier in it."""

    def __init__(self, order: Order) -> None:
        self.faults: list[str] = []
        self.kernels: set[str] = set()  # that ran
        self._order = order
        self._random = np.random.default_rng(0)
        self._now = 0
        self._shadows: list[Shadow] = []

    def begin(self, executor: Any, tensors: dict[str, torch.Tensor], grid: tuple[int, ...]) -> None:
        """Of a launch."""
        self.kernels.add(executor.fn.__name__)
        self._now += 1
        self._kernel, self._first, self._starts, self._programs = executor.fn, self._now, [], []
        self._grid = (*grid, 1, 1)[:3]
        self._places = np.arange(prod(self._grid))
        if self._order == "shuffled":
            self._random.shuffle(self._places)
        elif self._order == "descending":
            self._places = self._places[::-1]
        storages: dict[int, Shadow] = {}
        self._arguments: list[Argument] = []
        for name, tensor in tensors.items():
            whole = tensor.untyped_storage()
            if whole.data_ptr() not in storages:
                alike = [t.itemsize for t in tensors.values() if t.untyped_storage().data_ptr() == whole.data_ptr()]
                if len(storages) == len(self._shadows):
                    self._shadows.append(Shadow())
                storages[whole.data_ptr()] = self._shadows[len(storages)]
                storages[whole.data_ptr()].cover(whole.nbytes(), min(alike))
            address = tensor.data_ptr() + (len(self._arguments) << TAG)
            self._arguments.append(Argument(name, tensor, address, _axes(tensor), storages[whole.data_ptr()]))

    def program(self, builder: Any, number: int) -> None:
        """The launch's program `number` starts."""
        self._now += 1
        self._starts.append(self._now)
        self._programs.append(tuple(int(i) for i in np.unravel_index(self._places[number], self._grid)))
        builder.grid_idx = self._programs[-1]

    def barrier(self) -> None:
        self._now += 1

    def read(self, pointers: NDArray[np.uint64], mask: NDArray[np.bool_]) -> None:
        found = self._units(pointers, mask)
        if found is not None:
            argument, units = found
            self._refuse(argument, units, argument.shadow.written[units], "reads", "has written", self._starts[-1])
            before = argument.shadow.read[units]
            argument.shadow.read[units] = np.where(before < self._first, self._now, before)

    def write(self, pointers: NDArray[np.uint64], mask: NDArray[np.bool_], atomic: bool = False) -> None:
        """atomic: whatever is touched so in a launch may be touched in no other way; as if one program did it all."""
        found = self._units(pointers, mask)
        if found is None:
            return
        argument, units = found
        shadow, start = argument.shadow, self._first if atomic else self._starts[-1]
        self._refuse(argument, units, shadow.written[units], "writes", "has written", start, atomic)
        self._refuse(argument, units, shadow.read[units], "writes", "has read", start, True)
        if not atomic:
            lanes = np.arange(len(units), dtype=np.int32)
            shadow.written[units] = lanes
            twice = shadow.written[units] != lanes
            if twice.any():
                self.fail(f"writes {self._element(argument, units[twice][0])} by several threads at once")
        shadow.written[units] = self._first if atomic else self._now

    def _refuse(
        self, argument: Argument, units: Int64, moments: NDArray[np.int32], verb: str, done: str, start: int,
        unordered: bool = False,
    ) -> None:  # fmt: skip
        """KernelFault where a moment is one of the launch before `start`, or one that no barrier has ended, unless
        threads are in order, or need none."""
        wrong = (moments >= self._first) & (moments < start)
        if not unordered:
            wrong |= moments == self._now
        if wrong.any():
            place = bisect.bisect_right(self._starts, int(moments[wrong][0])) - 1
            other = f"program {self._programs[place]} of the same launch" if place >= 0 else "an atomic of the launch"
            if place == len(self._starts) - 1:
                other = "another thread of it, with no barrier since,"
            self.fail(f"{verb} {self._element(argument, units[wrong][0])}, which {other} {done}")

    def _units(self, pointers: NDArray[np.uint64], mask: NDArray[np.bool_]) -> tuple[Argument, Int64] | None:
        """What pointers point to; None: all are masked."""
        live = pointers[np.broadcast_to(mask, pointers.shape).astype(bool)]
        if not live.size:
            return None
        argument = self._arguments[min(int(live[0]) >> TAG, len(self._arguments) - 1)]
        offset = (live - np.uint64(argument.address)).astype(np.int64)
        outside = argument.outside(offset)
        if outside.any():
            number = int(offset[outside][0]) // argument.tensor.itemsize
            shape, strides = list(argument.tensor.shape), list(argument.tensor.stride())
            self.fail(f"touches element {number} of {argument.name}, which has none there: {shape} by {strides}")
        shadow, size = argument.shadow, argument.tensor.itemsize
        units = (offset + argument.tensor.storage_offset() * size) // shadow.unit
        if size > shadow.unit:
            units = (units[:, None] + np.arange(size // shadow.unit)).reshape(-1)
        return argument, units

    def _element(self, argument: Argument, unit: int) -> str:
        tensor = argument.tensor
        place = int(unit) * argument.shadow.unit // tensor.itemsize - tensor.storage_offset()
        return f"element {place} of {argument.name}"

    def fail(self, what: str) -> NoReturn:
        frame = sys._getframe()
        while frame.f_back is not None and not frame.f_code.co_filename == self._kernel.__code__.co_filename:
            frame = frame.f_back
        where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self.faults.append(f"{self._kernel.__name__} ({where}): program {self._programs[-1]} {what}")
        raise KernelFault(self.faults[-1])


@contextmanager
def sanitized(order: Order = "shuffled") -> Iterator[Sanitizer]:
    """All launches of the interpreter meanwhile: the first fault of one is raised, as KernelFault."""
    made, builder, launch = Sanitizer(order), interpreter.interpreter_builder, interpreter.GridExecutor.__call__
    convert, load, store = interpreter._implicit_cvt, builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def call(executor: Any, *args: Any, **options: Any) -> None:
        known = {name: value for name, value in options.items() if name in executor.arg_names}
        bound = inspect.getcallargs(executor.fn, *args, **known)
        tensors = {name: value for name, value in bound.items() if isinstance(value, torch.Tensor)}
        grid = executor.grid
        made.begin(executor, tensors, grid)
        tags = iter(range(len(tensors)))

        def tagged(value: Any) -> Any:
            converted = convert(value)
            if isinstance(value, torch.Tensor):
                converted.handle.data = converted.handle.data + np.uint64(next(tags) << TAG)
            return converted

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpreter, "_implicit_cvt", tagged)
            patch.setattr(builder, "set_grid_dim", lambda *_: setattr(builder, "grid_dim", made._grid))
            patch.setattr(builder, "set_grid_idx", lambda number, *_: made.program(builder, number))
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
        made.read(pointers.data, mask.data)
        return load(plain(pointers), mask, *rest)

    def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        made.write(pointers.data, mask.data)
        return store(plain(pointers), value, mask, *rest)

    def atomic_rmw(kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        made.write(pointers.data, mask.data, atomic=True)
        return rmw(kind, plain(pointers), value, mask, *rest)

    def atomic_cas(pointers: Any, *rest: Any) -> Any:
        made.write(pointers.data, np.ones(1, dtype=bool), atomic=True)
        return cas(plain(pointers), *rest)

    def check(condition: Any, message: str) -> None:
        if not condition:
            made.fail(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "__call__", call)
        patch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)  # they never left
        patch.setattr(builder, "create_masked_load", masked_load)
        patch.setattr(builder, "create_masked_store", masked_store)
        patch.setattr(builder, "create_atomic_rmw", atomic_rmw)
        patch.setattr(builder, "create_atomic_cas", atomic_cas)
        patch.setattr(builder, "create_barrier", made.barrier)
        patch.setattr(builder, "create_assert", check)
        patch.setattr(builder, "options", replace(builder.options, debug=True))  # sums and products of integers
        was = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)  # fills uninitialised memory
        try:
            yield made
        finally:
            torch.use_deterministic_algorithms(was)
