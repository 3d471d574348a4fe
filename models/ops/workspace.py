"""Workspace: scratch memory that is reused from layer to layer and step to step.

A fresh allocation of several MiB costs page faults on every call (4 to 5 times the copy itself on CPU); reusing one
buffer does not. Content is void as soon as the same dtype is taken again.
"""

from math import prod

import torch


class Workspace:
    """One growing buffer per (device, dtype)."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def take(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """An uninitialised tensor of `shape` with the dtype and device of `like`. Mutates: voids the last one taken."""
        key = (like.device, like.dtype)
        size = prod(shape)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size + size // 4, dtype=like.dtype, device=like.device)
            self._buffers[key] = buffer
        return buffer[:size].view(shape)
