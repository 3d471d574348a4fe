"""LoraCache: the tensors of the LoRA pool, and which adapter lies in which of its rank units.

Knows what plans say; not which adapters are wanted or evicted.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch

from hybrid.adapters.weights import AdapterWeights
from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.lora import LoraBatch, compile_kernel
from hybrid.scheduler.plan import Ints, LoadAdapter


class AdapterSource(Protocol):
    """Where the runner finds the weights of an adapter that a plan loads. Of a ready one they are there."""

    def weights(self, lora_id: int) -> AdapterWeights: ...


class LoraCache:
    """Room for `num_units` rank units at every site that is a target; allocated once."""

    def __init__(
        self,
        sites: Sequence[LoraSite],
        targets: Collection[str],
        num_units: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._sites = [site for site in sites if site.name in targets]
        self._device = device
        self._units: dict[int, Ints] = {}  # lora_id -> where it was loaded last
        for site in self._sites:
            site.allocate(num_units, dtype, device)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for site in self._sites for tensor in (site.a, site.b))

    def load(self, adapter: LoadAdapter, weights: AdapterWeights) -> None:
        """Mutates: the units hold this adapter from now on, and nothing else."""
        units = torch.from_numpy(adapter.units)
        for site in self._sites:
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
        for site in self._sites:
            compile_kernel(site)

    def __len__(self) -> int:
        """Adapters that are there."""
        return len(self._units)

    def units(self, lora_id: int) -> Ints | None:
        """Of an adapter that is there; None: the base model."""
        return self._units[lora_id] if lora_id else None

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
        return LoraBatch(table[np.searchsorted(used, np.repeat(lora_ids, lengths))])
