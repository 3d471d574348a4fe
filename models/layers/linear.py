"""Linear: a projection; several projections of the same input are fused into one at load time."""

from collections.abc import Sequence

import torch

from ..weights import Weights


class Linear:
    """x [..., in] -> [..., sum of outs]. Weights come as [out, in] and are kept as [in, out], faster at few rows."""

    def __init__(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None = None) -> None:
        joined = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
        self.weight = joined.t().contiguous()  # [in, sum of outs]
        self.bias = bias  # [sum of outs]

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
        return cls(
            [weights(f"{name}.weight", factor * in_multiplier) for name, factor in pairs],
            torch.cat([weights(f"{name}.bias", factor) for name, factor in pairs]) if bias else None,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.matmul(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)
