"""EncoderLora: what adapters change of how pictures are seen, one adapter at a time.

Knows an encoder's projections and the rank units of the LoRA pool; not which adapters lie in them.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.transfer import upload
from hybrid.scheduler.plan import Ints


class EncoderLora:
    """Mutates the projections: inside `applied`, their outputs change by what the sites hold."""

    def __init__(self, projections: Mapping[str, nn.Linear], targets: Collection[str]) -> None:
        """targets: names of the projections that adapters may change, and of anything else."""
        self._units: Ints | None = None
        self._where = torch.zeros(0, dtype=torch.int64)  # the same on the device
        self.sites: list[LoraSite] = []
        for name, module in projections.items():
            if name in targets:
                site = LoraSite(name, module.in_features, module.out_features)
                module.register_forward_hook(partial(self._add, site))
                self.sites.append(site)

    @contextmanager
    def applied(self, units: Ints | None) -> Iterator[None]:
        """units: of the adapter; None: the base model."""
        self._units = units
        if units is not None and self.sites:
            self._where = upload(units, self.sites[0].a.device)
        try:
            yield
        finally:
            self._units = None

    def _add(self, site: LoraSite, _: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        units = self._units
        if units is None or not site.filled[units[0]]:
            return output
        a, b = (matrices[self._where].flatten(0, 1) for matrices in (site.a, site.b))  # [r, inputs], [r, outputs]
        x: torch.Tensor = inputs[0]
        return output + ((x.to(a.dtype) @ a.t()) @ b).to(output.dtype)
