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

    def __init__(self, units: Ints, owner: Ints | None = None) -> None:
        """units [num_tokens, most units of an adapter], on the host; with owner [num_tokens], token t's are
        units[owner[t]]."""
        if owner is None:
            units, owner = np.unique(units, axis=0, return_inverse=True)
        self._of_adapters, self._owner = units, owner.reshape(-1)
        self._made: list[tuple[torch.Tensor, torch.Tensor, int]] | None = None
        self._planned: TritonLora | None = None

    def select(self, tokens: Ints) -> LoraBatch:
        """The same for these tokens [n], in this order."""
        return LoraBatch(self._of_adapters, self._owner[tokens])

    def add(self, site: LoraSite, x: torch.Tensor, out: torch.Tensor, expert: int | None = None) -> None:
        """Mutates out [num_tokens, *]: the columns of the site change by what it makes of x [num_tokens, inputs].

        expert: of stacked ones, one of them; Triton's kernels take them together, see `ops/experts.py`.
        """
        if not self.concerns(site):
            return
        if choose(out.device) == "triton" and expert is None:
            self.kernels(out.device).add(site, x, out)
            return
        every_a, every_b = site.of(expert)
        if x.dtype != site.a.dtype:
            x = x.to(site.a.dtype)
        if len(x) <= KERNEL_TOKENS and _kernel_fits(site, out):
            cpu.kernels().add_low_rank(
                x.contiguous().numpy(), every_a.numpy(), every_b.numpy(), self._filled(site), out.numpy(), site.offset
            )
            return
        columns = out[:, site.offset : site.offset + site.outputs]
        for tokens, units, first in self._groups(out.device):
            if site.filled[first]:
                a, b = every_a[units].flatten(0, 1), every_b[units].flatten(0, 1)  # [r, inputs], [r, outputs]
                columns.index_add_(0, tokens, ((x[tokens] @ a.t()) @ b).to(out.dtype))

    def add_rows(self, site: LoraSite, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """Mutates out [num_tokens, outputs]: rows of a table that was looked up at token_ids [num_tokens]."""
        if not self.concerns(site):
            return
        if choose(out.device) == "triton":
            self.kernels(out.device).add_rows(site, token_ids, out)
            return
        for tokens, units, first in self._groups(out.device):
            if site.filled[first]:
                low = site.a[units][:, token_ids[tokens]]  # [units, n, 8]
                out.index_add_(0, tokens, torch.einsum("unr,uro->no", low, site.b[units]).to(out.dtype))

    def concerns(self, site: LoraSite) -> bool:
        return len(site.filled) > 0 and bool(site.filled[self._used].any())

    def _filled(self, site: LoraSite) -> Ints:
        """Units of the tokens, without those that change nothing at the site; all units of an adapter do or do not."""
        units = np.where((self._of_adapters >= 0) & site.filled[self._of_adapters], self._of_adapters, -1)
        return units[self._owner]

    @cached_property
    def _used(self) -> Ints:
        """All units of the batch."""
        units = self._of_adapters[np.unique(self._owner)]
        return units[units >= 0]

    @cached_property
    def groups(self) -> list[tuple[Ints, Ints]]:
        """Per adapter: its tokens, and its units."""
        owners, found = np.unique(self._owner), []
        for index, units in zip(owners.tolist(), self._of_adapters[owners]):
            if units[0] >= 0:
                found.append((np.flatnonzero(self._owner == index), units[units >= 0]))
        return found

    def _groups(self, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Per adapter: its tokens and its units, on the device, and the first unit. Made once."""
        if self._made is None:
            self._made = [
                (upload(tokens, device), upload(units, device), int(units[0])) for tokens, units in self.groups
            ]
        return self._made

    def kernels(self, device: torch.device) -> TritonLora:
        """Made once."""
        if self._planned is None:
            from .triton.lora import TritonLora

            self._planned = TritonLora.plan(self.groups, len(self._owner), device)
        return self._planned


def compile_kernel(site: LoraSite) -> None:
    """Has the kernel for few tokens compiled, or read from numba's cache, where `add` would use it. Changes nothing."""
    x, out = torch.zeros((1, site.inputs)), torch.zeros((1, site.offset + site.outputs))
    if not site.table and _kernel_fits(site, out):
        nobody = np.full((1, 1), -1, dtype=np.int64)
        a, b = site.of(None if site.experts is None else 0)
        cpu.kernels().add_low_rank(x.numpy(), a.numpy(), b.numpy(), nobody, out.numpy(), site.offset)


def _kernel_fits(site: LoraSite, out: torch.Tensor) -> bool:
    return out.dtype == site.a.dtype == torch.float32 and out.is_contiguous() and choose(out.device) == "cpu"
