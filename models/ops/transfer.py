"""Copies from host to device that nobody waits for."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def staged(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The values on the host, in pinned memory where the device is a GPU: a copy from elsewhere waits for the step."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The values on the device."""
    return staged(values, device).to(device, non_blocking=True)
