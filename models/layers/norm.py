"""Norm: RMSNorm (Zhang and Sennrich 2019) and LayerNorm, computed in float32."""

import torch
import torch.nn.functional as F

from ..blueprint import parts
from ..ops.elementwise import rms_norm
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
        wide = x.float()
        if self.kind == "layer":
            return F.layer_norm(wide, self.shape, self.weight, self.bias, self.eps).to(x.dtype)
        if self.groups == 1:
            return rms_norm(wide, self.weight, self.eps).to(x.dtype)
        normed = F.rms_norm(wide.unflatten(-1, (self.groups, -1)), self.shape, None, self.eps).flatten(-2)
        return (normed if self.weight is None else normed * self.weight).to(x.dtype)
