"""Copies from host to device that nobody waits for."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def make_current(device: torch.device) -> None:
    """Mutates, for this thread: Triton launches kernels on the current device. torch goes where its tensors are."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


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
