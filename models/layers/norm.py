"""RMSNorm (Zhang and Sennrich 2019), computed in float32."""

import torch
import torch.nn.functional as F


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; weight [hidden_size]."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight.float()
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> the same shape and dtype."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).to(x.dtype)
