"""LoraSite: one place in a layer that adapters may change, with the tensors of all adapters on the device.

Sites come to be as layers are built and are collected by `Weights`; without adapters they hold nothing.
Knows no adapter's name and no request: `ops/lora.py` says which tokens take which rank units.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from hybrid.pools.specs import LORA_RANK_UNIT

from .ops.transfer import moved


class LoraSite:
    """The module `name`, whose output is columns offset .. offset + outputs - 1 of a projection.

    Base weights are changed as they are loaded, and so is the low-rank product b @ a: row j is row order[j] of the
    module's, times scale (a number, or one per row in the module's order); its inputs are multiplied by `columns`.
    With `experts`, the module is so many stacked ones. A `table` is looked up: its inputs are token ids.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        offset: int = 0,
        scale: float | torch.Tensor = 1.0,
        order: torch.Tensor | None = None,
        columns: torch.Tensor | None = None,
        experts: int | None = None,
        table: bool = False,
    ) -> None:
        self.name = name
        self.inputs, self.outputs, self.offset = inputs, outputs, offset
        self.table = table
        self.experts = experts
        self._scale, self._order, self._columns = scale, order, columns
        self.filled: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)  # [units] whether an adapter changes anything here
        self.live = torch.zeros(0)  # the same on the device
        self.a = torch.zeros(0)  # [units, 8, inputs], of experts [E, ...]; of a table [units, inputs, 8]
        self.b = torch.zeros(0)  # [units, 8, outputs], of experts [E, ...]

    def allocate(self, num_units: int, dtype: torch.dtype, device: torch.device) -> None:
        """Mutates: room for this many rank units, all of them empty."""
        shape = (self.inputs, LORA_RANK_UNIT) if self.table else (LORA_RANK_UNIT, self.inputs)
        units = (num_units,) if self.experts is None else (self.experts, num_units)
        self.filled = np.zeros(num_units, dtype=np.bool_)
        self.live = torch.zeros(num_units, dtype=torch.bool, device=device)
        self.a = torch.zeros((*units, *shape), dtype=dtype, device=device)
        self.b = torch.zeros((*units, LORA_RANK_UNIT, self.outputs), dtype=dtype, device=device)

    def write(self, units: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """Mutates: these units [n] hold b [outputs, r] @ a [r, inputs] (stacked experts: [E, ...] each), r <= 8 n.

        All of them may be on the host, where a step waits for nothing.
        """
        a, b = (moved(matrix, self.a.device).float() for matrix in (a, b))
        b = b * (self._scale[:, None] if isinstance(self._scale, torch.Tensor) else self._scale)
        if self._order is not None:
            b = b[..., self._order, :]
        if self._columns is not None:
            a = a * self._columns
        a, b = _in_units(a, len(units)), _in_units(b.mT, len(units))
        where = moved(units, self.a.device)
        self.a[..., where, :, :] = (a.mT if self.table else a).to(self.a.dtype)
        self.b[..., where, :, :] = b.to(self.b.dtype)
        self.fill(units)

    def fill(self, units: torch.Tensor) -> None:
        """Mutates: an adapter that holds these units [n] takes part here, with what they hold."""
        self._set_filled(units, True)

    def of(self, expert: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """a [units, 8, inputs] and b [units, 8, outputs] of an expert; None: of a module that is no stack."""
        return (self.a, self.b) if expert is None else (self.a[expert], self.b[expert])

    def clear(self, units: torch.Tensor) -> None:
        """Mutates: an adapter that holds these units [n] changes nothing here. What they held is never read."""
        self._set_filled(units, False)

    def _set_filled(self, units: torch.Tensor, filled: bool) -> None:
        self.filled[units.numpy(force=True)] = filled
        self.live[moved(units, self.live.device)] = filled


def _in_units(ranks: torch.Tensor, units: int) -> torch.Tensor:
    """[..., r, n] -> [..., units, 8, n], zeros behind the last rank."""
    filled = pad(ranks, (0, 0, 0, units * LORA_RANK_UNIT - ranks.shape[-2]))
    return filled.view(*ranks.shape[:-2], units, LORA_RANK_UNIT, ranks.shape[-1])
