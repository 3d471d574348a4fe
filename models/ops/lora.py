"""LoraBatch: low-rank changes of a batch's tokens, several adapters and none beside each other.

Tokens are grouped by adapter: two products per adapter and site, whatever the number of requests. Triton's kernels, or
for a few tokens on a CPU a compiled one, read rank units where they lie.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ..lora_site import LoraSite
from . import cpu
from .choice import choose
from .transfer import upload

if TYPE_CHECKING:  # triton is not installed everywhere
    from .triton.lora import TritonLora

Ints = NDArray[np.int64]
KERNEL_TOKENS = 64  # up to so many tokens the kernel, which computes one after the other, is the faster


class LoraBatch:
    """units[t] are the rank units of token t's adapter, -1 behind the last of them; a row of -1: no adapter."""

    def __init__(self, units: Ints) -> None:
        """units [num_tokens, most units of an adapter], on the host."""
        self.units = units
        self._made: list[tuple[torch.Tensor, torch.Tensor, int]] | None = None
        self._planned: TritonLora | None = None

    def select(self, tokens: Ints) -> LoraBatch:
        """The same for these tokens [n], in this order."""
        return LoraBatch(self.units[tokens])

    def add(self, site: LoraSite, x: torch.Tensor, out: torch.Tensor) -> None:
        """Mutates out [num_tokens, *]: the columns of the site change by what it makes of x [num_tokens, inputs]."""
        if not self.concerns(site):
            return
        if choose(out.device) == "triton":
            self._plan(out.device).add(site, x, out)
            return
        if x.dtype != site.a.dtype:
            x = x.to(site.a.dtype)
        if len(x) <= KERNEL_TOKENS and _kernel_fits(site, out):
            cpu.kernels().add_low_rank(
                x.contiguous().numpy(), site.a.numpy(), site.b.numpy(), self._filled(site), out.numpy(), site.offset
            )
            return
        columns = out[:, site.offset : site.offset + site.outputs]
        for tokens, units, first in self._groups(out.device):
            if site.filled[first]:
                a, b = site.a[units].flatten(0, 1), site.b[units].flatten(0, 1)  # [r, inputs], [r, outputs]
                columns.index_add_(0, tokens, ((x[tokens] @ a.t()) @ b).to(out.dtype))

    def add_rows(self, site: LoraSite, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Mutates out [num_tokens, outputs]: rows of a table that was looked up at token_ids [num_tokens]."""
        if not self.concerns(site):
            return
        if choose(out.device) == "triton":
            self._plan(out.device).add_rows(site, token_ids, out)
            return
        for tokens, units, first in self._groups(out.device):
            if site.filled[first]:
                low = site.a[units][:, token_ids[tokens]]  # [units, n, 8]
                out.index_add_(0, tokens, torch.einsum("unr,uro->no", low, site.b[units]).to(out.dtype))

    def concerns(self, site: LoraSite) -> bool:
        return len(site.filled) > 0 and bool(site.filled[self._used].any())

    def _filled(self, site: LoraSite) -> Ints:
        """`units` without those that change nothing at the site; all units of an adapter do or do not."""
        return np.where((self.units >= 0) & site.filled[self.units], self.units, -1)

    @cached_property
    def _used(self) -> Ints:
        return np.unique(self.units[self.units >= 0])

    @cached_property
    def _adapters(self) -> list[tuple[Ints, Ints]]:
        """Per adapter: its tokens, and its units."""
        adapters, owner = np.unique(self.units, axis=0, return_inverse=True)
        owner = owner.reshape(-1)
        groups = ((np.flatnonzero(owner == index), units[units >= 0]) for index, units in enumerate(adapters))
        return [(tokens, used) for tokens, used in groups if len(used)]

    def _groups(self, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Per adapter: its tokens and its units, on the device, and the first unit. Made once."""
        if self._made is None:
            self._made = [
                (upload(tokens, device), upload(units, device), int(units[0])) for tokens, units in self._adapters
            ]
        return self._made

    def _plan(self, device: torch.device) -> TritonLora:
        """Made once."""
        if self._planned is None:
            from .triton.lora import TritonLora

            self._planned = TritonLora.plan(self._adapters, device)
        return self._planned


def compile_kernel(site: LoraSite) -> None:
    """Has the kernel for few tokens compiled, or read from numba's cache, where `add` would use it. Changes nothing."""
    x, out = torch.zeros((1, site.inputs)), torch.zeros((1, site.offset + site.outputs))
    if not site.table and _kernel_fits(site, out):
        nobody = np.full((1, 1), -1, dtype=np.int64)
        cpu.kernels().add_low_rank(x.numpy(), site.a.numpy(), site.b.numpy(), nobody, out.numpy(), site.offset)


def _kernel_fits(site: LoraSite, out: torch.Tensor) -> bool:
    return out.dtype == site.a.dtype == torch.float32 and out.is_contiguous() and choose(out.device) == "cpu"
