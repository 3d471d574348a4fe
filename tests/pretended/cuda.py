"""`torch.cuda` and Triton's launches on a pretended device."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from hybrid.models.layers import rotary
from hybrid.models.ops.choice import _is_recent
from hybrid.models.ops.triton import norm
from hybrid.models.ops.triton.device import interpreted, num_programs, shared_memory

from .device import PretendedDevice, is_there
from .memory import Graph, Stream, Tensor

MEMORY = 1 << 30
NUM_DEVICES = 2
NAME = re.compile(r"cuda(?::(\d))?")


class _Names(TorchFunctionMode):
    """What torch resolves before operations: names of the device, values that Python asks for, indices."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        args = [self._named(value) for value in args]
        kwargs = {key: self._named(value) for key, value in (kwargs or {}).items()}
        name = getattr(func, "__name__", "")
        first: Any = args[0] if args else None
        if name in ("tensor", "as_tensor", "asarray", "new_tensor"):
            device = kwargs.get("device", first.device if name == "new_tensor" else None)
            if is_there(device) and not isinstance(args[-1], Tensor):
                self._device.wait("values of the host's own")
                return self._device.wrap(torch.tensor(args[-1], dtype=kwargs.get("dtype")), device.index)
        if isinstance(first, Tensor):
            if name in ("numpy", "__array__") and not kwargs.get("force"):
                raise TypeError("can't convert a tensor of the device to numpy")
            if name in ("numpy", "tolist"):
                self._device.wait(name)
                return func(first.inside, *args[1:], **kwargs)
            if name in ("__getitem__", "__setitem__"):
                one = not isinstance(args[1], tuple)
                indices = tuple(
                    torch.as_tensor(index) if isinstance(index, list | np.ndarray) else index
                    for index in ((args[1],) if one else args[1])
                )
                args[1] = indices[0] if one else indices
        return func(*args, **kwargs)

    def _named(self, value: Any) -> Any:
        if isinstance(value, str):
            found = NAME.fullmatch(value)
            return torch.device("meta", int(found[1] or self._device.current)) if found else value
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("meta", self._device.current if value.index is None else value.index)
        return value


@contextmanager
def pretended(patch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """Inside, GPUs are there, of which nothing is in use. Mutates torch.cuda until the patch is undone."""
    if not interpreted():
        pytest.skip("there is a GPU, and kernels are compiled")
    device = PretendedDevice()

    class Events(Stream):
        """An event: a stream that stands still."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            self._until = 0

        def record(self, stream: Stream | None = None) -> None:
            self.seen = {}
            self.wait_for(stream or device.stream)
            self._until = device.num_started

        def wait(self, stream: Stream | None = None) -> None:
            (stream or device.stream).wait_for(self)

        def synchronize(self) -> None:
            device.wait("an event", self._until)

    class Streams(Stream):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        wait_stream = wait_event = Stream.wait_for

        def synchronize(self) -> None:
            device.wait("a stream")

    @contextmanager
    def graph(made: Graph, pool: Any = None, stream: Stream | None = None) -> Iterator[None]:
        side = stream or Streams()
        side.wait_for(device.stream)  # it synchronises before it begins
        with device.on(side), device.capture(made):
            yield
        device.stream.wait_for(side)

    @contextmanager
    def on_device(chosen: Any) -> Iterator[None]:
        before = device.current
        device.current = _index(chosen)
        try:
            yield
        finally:
            device.current = before

    def set_device(chosen: Any) -> None:
        device.current = _index(chosen)

    device.stream = Streams()
    properties = SimpleNamespace(
        name="pretended", total_memory=MEMORY, multi_processor_count=2, shared_memory_per_block_optin=100 << 10
    )
    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: NUM_DEVICES,
        "current_device": lambda: device.current,
        "set_device": set_device,
        "device": on_device,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
        "current_stream": lambda *_: device.stream,
        "Stream": Streams,
        "stream": device.on,
        "Event": Events,
        "CUDAGraph": Graph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 0),
        "synchronize": lambda *_: device.wait("the device"),
        "empty_cache": lambda: None,
    }
    for name, fake in fakes.items():
        patch.setattr(torch.cuda, name, fake)
    kernel = type(norm._rms_norm)
    run = kernel.run
    patch.setattr(kernel, "run", lambda self, *args, **options: device.launch(self, run, args, options))
    try:
        _forget()
        with device, _Names(device):
            yield device
    finally:
        _forget()


def _forget() -> None:
    """What is kept by device for the whole process."""
    for kept in (_is_recent, num_programs, shared_memory, rotary.constants):
        kept.cache_clear()


def _index(chosen: Any) -> int:
    """As `torch.cuda.set_device` has it."""
    if isinstance(chosen, int):
        return chosen
    named = torch.device(chosen)
    if named.type != "cuda" or named.index is None:
        raise ValueError(f"Expected a cuda device with its number, but got: {named}")
    return named.index
