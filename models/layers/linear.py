"""Linear: a projection; several projections of the same input are fused into one at load time."""

from collections.abc import Sequence

import torch

from ..weights import Weights


class Linear:
    """x [..., in] -> [..., sum of outs]. Weights come as [out, in] and are kept as [in, out], faster at few rows."""

    def __init__(
        self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> None:
        """dtype: of the weight that is kept; None: the one it has."""
        self.weight = _joined(weights, dtype or weights[0].dtype)  # [in, sum of outs]
        self.bias = bias  # [sum of outs]

    @classmethod
    def load(
        cls, weights: Weights, names: Sequence[str], bias: bool = False, multipliers: Sequence[float] = ()
    ) -> "Linear":
        """The projections `{name}.weight` and, with `bias`, `{name}.bias`, each times its multiplier."""
        factors = multipliers or (1.0,) * len(names)
        pairs = tuple(zip(names, factors, strict=True))
        return cls(
            [
                weights.stored(f"{name}.weight") if factor == 1 else weights(f"{name}.weight", factor)
                for name, factor in pairs
            ],
            torch.cat([weights(f"{name}.bias", factor) for name, factor in pairs]) if bias else None,
            weights.dtype,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.matmul(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)


def _joined(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """[out, in] each -> [in, sum of outs], straight to where it stays: a copy in between would take as much again."""
    first, sizes = weights[0], [len(weight) for weight in weights]
    if len(weights) == 1 and first.dtype == dtype:
        return first.t().contiguous()  # much the same, but faster
    joined = first.new_empty(first.shape[1], sum(sizes), dtype=dtype)
    for part, weight in zip(joined.split(sizes, dim=1), weights):
        part.copy_(weight.t())
    return joined
