"""DecodeLora: what adapters do to the rows of a decode step, in tables that stay where they are, for graphs.

Whatever adapters rows have, the same kernels run; blocks of nobody's end at once. Knows neither rows nor adapters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ..context import Ints
from ..lora_site import LoraSite
from .choice import choose
from .lora import LoraBatch
from .lora_tables import NOBODY, LoraTables
from .transfer import staged

if TYPE_CHECKING:  # triton is not installed everywhere
    from .triton.lora import TritonLora


class DecodeLora:
    """See LoraBatch. Of a batch in which nobody has an adapter until `fill`."""

    def __init__(self, num_rows: int, num_units: int, most_units: int, device: torch.device) -> None:
        """num_units: of the pool; most_units: of one adapter."""
        self._tables = LoraTables.largest(num_rows, num_units, most_units)
        self._filled = torch.full((self._tables.size,), NOBODY, dtype=torch.int32, device=device)
        self._planned: TritonLora | None = None

    def fill(self, batch: LoraBatch) -> None:
        """Mutates the tables: the batch's tokens are the first rows, the others have no adapter."""
        self._filled.copy_(staged(self._tables.filled(batch.groups), self._filled.device), non_blocking=True)

    def read(self) -> LoraBatch:
        """What the tables say: for a host that may wait for the device."""
        flat = self._filled.numpy(force=True).astype(np.int64)
        _, _, units, adapters = self._tables.views(flat)
        return LoraBatch(np.where(adapters[:, None] >= 0, units[adapters], NOBODY))

    def select(self, tokens: Ints) -> LoraBatch:
        """See LoraBatch.select. Waits for the device."""
        return self.read().select(tokens)

    def add(self, site: LoraSite, x: torch.Tensor, out: torch.Tensor) -> None:
        """See LoraBatch.add."""
        if self.concerns(site):
            (self.kernels(out.device) if choose(out.device) == "triton" else self.read()).add(site, x, out)

    def add_rows(self, site: LoraSite, token_ids: torch.Tensor, out: torch.Tensor) -> None:
        """See LoraBatch.add_rows."""
        if self.concerns(site):
            (self.kernels(out.device) if choose(out.device) == "triton" else self.read()).add_rows(site, token_ids, out)

    def concerns(self, site: LoraSite) -> bool:
        """Whether adapters may change it: a graph serves them all."""
        return len(site.filled) > 0

    def kernels(self, device: torch.device) -> TritonLora:
        """Made once. device: that of the tables."""
        if self._planned is None:
            from .triton.lora import TritonLora

            assert device == self._filled.device
            self._planned = TritonLora(self._tables, *self._tables.views(self._filled))
        return self._planned


Lora = LoraBatch | DecodeLora
