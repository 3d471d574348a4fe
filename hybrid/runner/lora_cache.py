"""LoraCache: the tensors of the LoRA pool, and which adapter lies in which of its rank units.

Knows what plans say; not which adapters are wanted or evicted.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from hybrid.adapters.weights import AdapterWeights
from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.decode_lora import DecodeLora
from hybrid.models.ops.lora import LoraBatch, compile_kernel
from hybrid.pools.sizing import lora_units
from hybrid.scheduler.plan import Ints, LoadAdapter


class AdapterSource(Protocol):
    """Where the runner finds the weights of an adapter that a plan loads. Of a ready one they are there."""

    @property
    def max_lora_rank(self) -> int: ...

    def weights(self, lora_id: int) -> AdapterWeights: ...


class LoraCache:
    """Room for `num_units` rank units at every site that is a target, `sites`; allocated once."""

    def __init__(
        self,
        sites: Sequence[LoraSite],
        targets: Collection[str],
        num_units: int,
        dtype: torch.dtype,
        device: torch.device,
        max_rank: int | None = None,
    ) -> None:
        """max_rank: of an adapter; None: any that fits."""
        self.sites = [site for site in sites if site.name in targets]
        self._device = device
        self._num_units = num_units
        self._most_units = num_units if max_rank is None else min(num_units, lora_units(max_rank))
        self._units: dict[int, Ints] = {}  # lora_id -> where it was loaded last
        for site in self.sites:
            site.allocate(num_units, dtype, device)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for site in self.sites for tensor in (site.a, site.b))

    def load(self, adapter: LoadAdapter, weights: AdapterWeights) -> None:
        """Mutates: the units hold this adapter from now on, and nothing else."""
        assert len(adapter.units) <= self._most_units, f"{len(adapter.units)} rank units of one adapter"
        units = torch.from_numpy(adapter.units)
        for site in self.sites:
            matrices = weights.modules.get(site.name)
            if matrices is None:
                site.clear(units)
            else:
                site.write(units, matrices.a, matrices.b)
        # whom they held before is gone: an adapter that is loaded anew again and again leaves nothing behind
        self._units = {lora_id: held for lora_id, held in self._units.items() if not np.isin(held, adapter.units).any()}
        self._units[adapter.lora_id] = adapter.units

    def warm_up(self) -> None:
        """Has what adapters need compiled. Changes nothing."""
        for site in self.sites:
            compile_kernel(site)

    @contextmanager
    def pretending(self, lora_id: int) -> Iterator[None]:
        """Inside, an adapter of this number is there that takes part at every site and changes nothing. To be called
        while none is loaded."""
        assert not self._units, "adapters are loaded"
        unit = torch.zeros(1, dtype=torch.int64, device=self._device)
        for site in self.sites:
            site.fill(unit)
        self._units[lora_id] = unit.numpy(force=True)
        try:
            yield
        finally:
            del self._units[lora_id]
            for site in self.sites:
                site.clear(unit)

    def __len__(self) -> int:
        """Adapters that are there."""
        return len(self._units)

    def units(self, lora_id: int) -> Ints | None:
        """Of an adapter that is there; None: the base model."""
        return self._units[lora_id] if lora_id else None

    def of_decodes(self, num_rows: int) -> DecodeLora:
        """For graphs of so many rows; nobody has an adapter yet."""
        return DecodeLora(num_rows, self._num_units, self._most_units, self._device)

    def batch(self, lora_ids: Ints, lengths: Ints) -> LoraBatch | None:
        """lora_ids [num_rows], lengths [num_rows] tokens of each -> what adapters do to these tokens."""
        if not lora_ids.any():
            return None
        used = np.unique(lora_ids)
        most = max(len(self._units[lora_id]) for lora_id in used.tolist() if lora_id)
        table = np.full((len(used), most), -1, dtype=np.int64)
        for row, lora_id in enumerate(used.tolist()):
            if lora_id:
                units = self._units[lora_id]
                table[row, : len(units)] = units
        return LoraBatch(table, np.searchsorted(used, np.repeat(lora_ids, lengths)))
