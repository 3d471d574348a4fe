"""Norm: RMSNorm (Zhang and Sennrich 2019) and LayerNorm, computed in float32."""

import torch
import torch.nn.functional as F

from ..blueprint import parts
from ..ops.elementwise import add_rms_norm, rms_norm, rms_norm_
from ..weights import Weights


class Norm:
    """[..., size] -> the same shape and dtype. See `blueprint.parts.Norm`."""

    def __init__(self, norm: parts.Norm, weights: Weights) -> None:
        self.eps = norm.eps
        self.kind = norm.kind
        self.shape = (norm.size // norm.groups,)
        self.groups = norm.groups
        self.weight = weights.float(f"{norm.name}.weight") + norm.offset if norm.weight else None  # [size]
        self.bias = weights.float(f"{norm.name}.bias") if norm.bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "layer":
            return F.layer_norm(x.float(), self.shape, self.weight, self.bias, self.eps).to(x.dtype)
        return rms_norm(x, self.weight, self.eps, self.groups)

    def in_place(self, x: torch.Tensor) -> None:
        """Mutates x [tokens, size] or [tokens, n, size], which may lie inside something wider."""
        if self.kind == "layer" or self.groups > 1:
            x.copy_(self(x))
        else:
            rms_norm_(x, self.weight, self.eps)

    def of_sum(self, x: torch.Tensor, added: torch.Tensor, multiplier: float) -> tuple[torch.Tensor, torch.Tensor]:
        """x + multiplier * added, [tokens, size] in the dtype of x, and the norm of it."""
        if self.kind == "layer" or self.groups > 1:
            total = torch.add(x, added, alpha=multiplier)
            return total, self(total)
        return add_rms_norm(x, added, multiplier, self.weight, self.eps)
