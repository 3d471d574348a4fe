"""Sanitizer: what programs of a launch do to memory that is fine one after the other, and on a GPU is not.

Programs that touch what another one of the launch writes, threads of a program that meet without a barrier, addresses
where the tensor that the pointer was made of has no element. Knows neither kernels nor who runs them (`sanitized`).
"""

import bisect
import mmap
import sys
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

TAG = 48  # bits of an address; those above are the number of the argument that it was made of
MAP_NORESERVE = 0x4000  # of Linux: memory that nobody touches need not be there
Order = Literal["ascending", "descending", "shuffled"]
Int64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


class KernelFault(AssertionError):
    """What a kernel did, in a sentence."""


def untouched(size: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros [size] of which only what is touched takes memory, however many they are."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, max(1, size) * np.dtype(dtype).itemsize, flags=flags)
    with suppress(OSError):  # a kernel that has no huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype)[:size]


class Shadow:
    """When each unit of a storage was last written and first read, by the sanitizer's clock."""

    def __init__(self) -> None:
        self.unit, self.written, self.read = 1, untouched(0, np.int32), untouched(0, np.int32)

    def cover(self, nbytes: int, unit: int) -> None:
        """Mutates: for a storage of the next launch, in units of so many bytes. What it holds is earlier than that."""
        self.unit = unit
        if len(self.written) * unit < nbytes:
            self.written, self.read = (untouched(-(-nbytes // unit), np.int32) for _ in range(2))


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor of a launch."""

    name: str
    tensor: torch.Tensor
    address: int  # with its tag
    axes: tuple[tuple[int, int], ...]  # stride in bytes and size, the longest stride first; as few as there can be
    shadow: Shadow

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, number: int, shadow: Shadow) -> "Argument":
        axes = [(tensor.itemsize, min(tensor.numel(), 1))]
        for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
            if stride and size > 1 and tensor.numel():
                inner, count = axes[-1]
                follows = stride * tensor.itemsize == inner * count
                axes[len(axes) - follows :] = [(inner, count * size) if follows else (stride * tensor.itemsize, size)]
        return cls(name, tensor, tensor.data_ptr() + (number << TAG), tuple(reversed(axes)), shadow)

    def outside(self, offset: Int64) -> Mask:
        """Which offsets (bytes) are those of no element."""
        wrong = np.zeros(offset.shape, dtype=np.bool_)
        for stride, size in self.axes:
            index = offset // stride
            wrong |= (index < 0) | (index >= size)
            offset = offset - index * stride
        wrong |= offset != 0
        return wrong

    def units(self, offset: Int64) -> Int64:
        """Those of the shadow."""
        size, unit = self.tensor.itemsize, self.shadow.unit
        first = (offset + self.tensor.storage_offset() * size) // unit
        return first if size == unit else (first[:, None] + np.arange(size // unit)).reshape(-1)

    def element(self, unit: int) -> str:
        place = int(unit) * self.shadow.unit // self.tensor.itemsize - self.tensor.storage_offset()
        return f"element {place} of {self.name}"


class Sanitizer:
    """Of all launches of a test. Its clock ticks when a program starts, and at barriers."""

    def __init__(self, order: Order) -> None:
        self.faults: list[str] = []
        self.kernels: set[str] = set()  # that were launched
        self._order = order
        self._random = np.random.default_rng(0)
        self._now = 0
        self._shadows: list[Shadow] = []
        self._starts: list[int] = []  # of the launch's programs so far
        self._programs: list[tuple[int, ...]] = []

    def launch(self, kernel: Any, tensors: dict[str, torch.Tensor], grid: tuple[int, ...]) -> None:
        """Mutates: a launch begins. kernel: a function; tensors: its arguments."""
        self.kernels.add(kernel.__name__)
        self._now += 1
        self._kernel, self._grid, self._first = kernel, grid, self._now
        self._starts.clear()
        self._programs.clear()
        self._places = np.arange(prod(grid))
        if self._order == "shuffled":
            self._random.shuffle(self._places)
        elif self._order == "descending":
            self._places = self._places[::-1]
        shadows: dict[int, Shadow] = {}  # by storage
        self._arguments: list[Argument] = []
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in shadows:
                if len(shadows) == len(self._shadows):
                    self._shadows.append(Shadow())
                sharing = (t for t in tensors.values() if t.untyped_storage().data_ptr() == storage.data_ptr())
                shadow = shadows[storage.data_ptr()] = self._shadows[len(shadows)]
                shadow.cover(storage.nbytes(), min(t.itemsize for t in sharing))
            self._arguments.append(Argument.of(name, tensor, len(self._arguments), shadows[storage.data_ptr()]))

    def start(self, number: int) -> tuple[int, ...]:
        """Mutates: which program of the grid starts, as the launch's `number`."""
        self._now += 1
        self._starts.append(self._now)
        self._programs.append(tuple(int(i) for i in np.unravel_index(self._places[number], self._grid)))
        return self._programs[-1]

    def barrier(self) -> None:
        """Mutates: all threads of the program have done what comes before."""
        self._now += 1

    def read(self, pointers: NDArray[np.uint64], mask: NDArray[Any]) -> None:
        """Mutates: the running program loads. KernelFault: see above."""
        found = self._find(pointers, mask)
        if found is not None:
            argument, units = found
            moments = argument.shadow.read[units]
            self._refuse(argument, units, argument.shadow.written[units], "reads", "has written", self._starts[-1])
            argument.shadow.read[units] = np.where(moments < self._first, self._now, moments)

    def write(self, pointers: NDArray[np.uint64], mask: NDArray[Any], atomic: bool = False) -> None:
        """Mutates: the running program stores. atomic: as if one program of its own did all of that in the launch."""
        found = self._find(pointers, mask)
        if found is None:
            return
        argument, units = found
        shadow, start = argument.shadow, self._first if atomic else self._starts[-1]
        self._refuse(argument, units, shadow.read[units], "writes", "has read", start, ordered=True)
        self._refuse(argument, units, shadow.written[units], "writes", "has written", start, ordered=atomic)
        lanes = np.arange(len(units), dtype=np.int32)
        shadow.written[units] = lanes
        if not atomic and (shadow.written[units] != lanes).any():
            twice = units[shadow.written[units] != lanes][0]
            self.fail(f"writes {argument.element(twice)} by several threads at once")
        shadow.written[units] = self._first if atomic else self._now

    def fail(self, what: str) -> NoReturn:
        """KernelFault: the running program does `what`."""
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename != self._kernel.__code__.co_filename:
            frame = frame.f_back
        where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self.faults.append(f"{self._kernel.__name__} ({where}): program {self._programs[-1]} {what}")
        raise KernelFault(self.faults[-1])

    def _find(self, pointers: NDArray[np.uint64], mask: NDArray[Any]) -> tuple[Argument, Int64] | None:
        """What pointers point to; None: all are masked."""
        live = pointers[np.broadcast_to(mask, pointers.shape).astype(np.bool_)]
        if not live.size:
            return None
        argument = self._arguments[min(int(live[0]) >> TAG, len(self._arguments) - 1)]
        offset = (live - np.uint64(argument.address)).astype(np.int64)
        outside = argument.outside(offset)
        if outside.any():
            number = int(offset[outside][0]) // argument.tensor.itemsize
            shape, strides = list(argument.tensor.shape), list(argument.tensor.stride())
            self.fail(f"touches element {number} of {argument.name}, which has none there: {shape} by {strides}")
        return argument, argument.units(offset)

    def _refuse(
        self,
        argument: Argument,
        units: Int64,
        moments: NDArray[np.int32],
        verb: str,
        done: str,
        start: int,
        ordered: bool = False,
    ) -> None:
        """KernelFault where moments are of this launch and before `start`; or, unless the program's threads are ordered
        without, where no barrier came after."""
        wrong = (moments >= self._first) & (moments < start)
        if not ordered:
            wrong |= moments == self._now
        if wrong.any():
            place = bisect.bisect_right(self._starts, int(moments[wrong][0])) - 1
            other = f"program {self._programs[place]} of the same launch" if place >= 0 else "an atomic of the launch"
            if place == len(self._starts) - 1:
                other = "another thread of it, with no barrier since,"
            self.fail(f"{verb} {argument.element(units[wrong][0])}, which {other} {done}")
