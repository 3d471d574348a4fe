"""Linear: a projection; several projections of the same input are fused into one at load time."""

from collections.abc import Sequence

import torch

from ..weights import Weights


class Linear:
    """x [..., in] -> [..., sum of outs]. Weights come as [out, in] and are kept as [in, out], faster at few rows."""

    def __init__(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None = None) -> None:
        if len(weights) == 1:
            self.weight = weights[0].t().contiguous()  # [in, sum of outs]
        else:  # straight to where it stays: a copy in between would take as much memory again
            first = weights[0]
            self.weight = first.new_empty(first.shape[1], sum(len(weight) for weight in weights))
            for part, weight in zip(self.weight.split([len(weight) for weight in weights], dim=1), weights):
                part.copy_(weight.t())
        self.bias = bias  # [sum of outs]

    @classmethod
    def load(
        cls, weights: Weights, names: Sequence[str], bias: bool = False, multipliers: Sequence[float] = ()
    ) -> "Linear":
        """The projections `{name}.weight` and, with `bias`, `{name}.bias`, each times its multiplier."""
        factors = multipliers or (1.0,) * len(names)
        pairs = tuple(zip(names, factors, strict=True))
        return cls(
            [weights(f"{name}.weight", factor) for name, factor in pairs],
            torch.cat([weights(f"{name}.bias", factor) for name, factor in pairs]) if bias else None,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.matmul(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)
