"""Copies between host and device that nobody waits for until what they bring is needed."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def make_current(device: torch.device) -> torch.device:
    """The device, a GPU with its number. Mutates, for this thread: Triton launches kernels on the current device; torch
    goes where its tensors are."""
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.set_device(device)
    return device


def staged(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The values on the host, in pinned memory where the device is a GPU: a copy from elsewhere waits for the step."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The values on the device."""
    return staged(values, device).to(device, non_blocking=True)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor, of the host or of the device, on the device."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Download:
    """A tensor's values on their way to the host. The tensor must not be changed before `wait` has returned."""

    def __init__(self, values: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._host = values
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(values.device))

    def wait(self) -> NDArray[Any]:
        """The values. Here the host waits for the device."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.numpy(force=True)
