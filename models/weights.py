"""Weights: named tensors of a checkpoint, brought to the model's dtype and device one by one.

Knows neither files nor layers: a source reads, layers ask. What was handed over is not kept here.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from .lora_site import LoraSite


class TensorSource(Protocol):
    """Reads one tensor by name, as the checkpoint has it. A mapping of tensors is one."""

    def __getitem__(self, name: str, /) -> torch.Tensor: ...


class Weights:
    """Tensors by name in `dtype`, on `device`."""

    def __init__(
        self, source: TensorSource | Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._source = source
        self.dtype = dtype
        self.device = torch.empty(0, device=device).device  # of "cuda" with its number, as tensors say it
        self._sites: list[LoraSite] = []

    @property
    def sites(self) -> tuple[LoraSite, ...]:
        """What adapters may change, of all layers that were built from these weights."""
        return tuple(self._sites)

    def site(self, name: str, inputs: int, outputs: int, offset: int = 0, scale: Any = 1.0, **more: Any) -> LoraSite:
        """Mutates: a place where adapters may change the module `name`; see LoraSite."""
        site = LoraSite(name, inputs, outputs, offset, scale, **more)
        self._sites.append(site)
        return site

    def __call__(self, name: str, multiplier: float = 1.0) -> torch.Tensor:
        """The tensor in the model's dtype, times `multiplier` (computed in float32).

        Raises ValueError where the product is too large.
        """
        tensor = self._source[name]
        if multiplier != 1.0:
            tensor = tensor.float() * multiplier
            if not tensor.isfinite().all():
                raise ValueError(f"tensor {name} times its multiplier {multiplier:g} is too large for float32")
        return self._in(name, tensor, self.dtype)

    def stored(self, name: str) -> torch.Tensor:
        """The tensor on the device, in the dtype that the checkpoint has: for who copies it anyway, into `dtype`."""
        tensor = self._source[name]
        _refuse_overflow(name, tensor, self.dtype)
        return tensor.to(device=self.device)

    def float(self, name: str) -> torch.Tensor:
        """The tensor in float32: norms, biases of scans, decay rates."""
        return self._in(name, self._source[name], torch.float32)

    def _in(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        _refuse_overflow(name, tensor, dtype)
        return tensor.to(device=self.device, dtype=dtype)


def _refuse_overflow(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError for finite values that would be infinite in `dtype`."""
    if tensor.numel() == 0 or torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max:
        return
    if not all(bool(torch.isfinite(bound.to(dtype))) for bound in torch.aminmax(tensor)):
        spelled = str(dtype).removeprefix("torch.")
        raise ValueError(f"tensor {name} holds values that are too large for {spelled}; choose another dtype")
