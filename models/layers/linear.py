"""Linear: a projection without bias; several projections of the same input are fused into one at load time."""

from collections.abc import Sequence

import torch


class Linear:
    """x [..., in] -> [..., sum of outs]. Weights come as [out, in] and are kept as [in, out], faster at few rows."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self.weight = torch.cat(tuple(weights)).t().contiguous()  # [in, sum of outs]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.weight)
