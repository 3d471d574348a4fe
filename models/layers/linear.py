"""Linear: a projection; several projections of the same input are fused into one at load time.

On a CPU the weight is kept in oneDNN's blocked layout: 2 to 4 times as fast as a dense one at 4 to 128 rows, because
nothing is repacked on every call (`benchmarks/linear.py`).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ..lora_site import LoraSite
from ..ops.decode_lora import Lora
from ..tensor_files import scratch
from ..weights import Weights

PACKED_DTYPES = (torch.float32, torch.bfloat16)
PACKED_FOR_ROWS = 32  # a hint to oneDNN; its layout for 16 rows or more serves all numbers of rows equally well


class Linear:
    """x [rows, in] -> [rows, sum of outs]. Weights come as [out, in], a bias as [sum of outs]."""

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        bias: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        sites: Sequence[LoraSite] = (),
    ) -> None:
        """dtype: of the weight that is kept; None: the one it has. sites: what adapters may change."""
        weight = _joined(weights, dtype or weights[0].dtype)  # [sum of outs, in]
        self._packed = can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS) if self._packed else weight
        self._bias = bias
        self._sites = tuple(sites)

    @classmethod
    def load(
        cls,
        weights: Weights,
        names: Sequence[str],
        bias: bool = False,
        multipliers: Sequence[float] = (),
        in_multiplier: float = 1.0,
    ) -> "Linear":
        """The projections `{name}.weight` and, with `bias`, `{name}.bias`, each times its multiplier.

        in_multiplier: of what is projected; it leaves biases as they are.
        """
        factors = multipliers or (1.0,) * len(names)
        pairs = tuple(zip(names, factors, strict=True))
        matrices, sites, offset = [], [], 0
        for name, factor in ((name, factor * in_multiplier) for name, factor in pairs):
            full = f"{name}.weight"
            matrix = weights.stored(full) if factor == 1 else weights(full, factor)
            sites.append(weights.site(name, matrix.shape[1], len(matrix), offset, factor))
            matrices.append(matrix)
            offset += len(matrix)
        joined_bias = torch.cat([weights(f"{name}.bias", factor) for name, factor in pairs]) if bias else None
        return cls(matrices, joined_bias, weights.dtype, sites)

    def __call__(self, x: torch.Tensor, lora: Lora | None = None) -> torch.Tensor:
        """lora: of these rows; None: no adapter changes any of them."""
        if self._packed:
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        else:
            out = F.linear(x, self._weight, self._bias)
        if lora is not None:
            for site in self._sites:
                lora.add(site, x, out)
        return out


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN has a layout of its own for this matrix here."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in PACKED_DTYPES
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
    )


def _joined(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """[out, in] each -> [sum of outs, in]. On a CPU in memory of its own: packing makes a copy and lets go of it."""
    first, sizes = weights[0], [len(weight) for weight in weights]
    if len(weights) == 1 and first.dtype == dtype:
        return first.contiguous()
    shape = (sum(sizes), first.shape[1])
    joined = scratch(shape, dtype) if first.device.type == "cpu" else first.new_empty(shape, dtype=dtype)
    for part, weight in zip(joined.split(sizes), weights, strict=True):
        part.copy_(weight)
    return joined
