"""Copies of pictures to the device that nobody waits for."""

from typing import Any

import torch
from numpy.typing import NDArray


def upload(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The values on the device; by way of pinned memory where it is a GPU, as a copy from elsewhere waits for it."""
    host = torch.from_numpy(values)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
