"""Mamba2: the mixer around convolution and scan, as in transformers' Mamba2 and Bamba mixers.

Glossary: T tokens, H heads, P channels per head, N state size, G groups, d_inner = H P, C = d_inner + 2 G N channels of
the convolution; z gate, x input, b and c input and output maps, dt step size, a = -exp(A_log), D skip.
"""

import torch
import torch.nn.functional as F

from ..blueprint import recurrent
from ..weights import Weights
from .linear import Linear
from .norm import Norm
from .step import Step


class Mamba2:
    """See `blueprint.recurrent.Mamba2`."""

    def __init__(self, part: recurrent.Mamba2, weights: Weights, cache_index: int) -> None:
        at = part.name
        self._part = part
        self._cache_index = cache_index
        self._in = _load_in(part, weights)
        self._conv_weight = weights(f"{at}.conv1d.weight")[:, 0].t().contiguous()  # [K, C]
        self._conv_bias = weights(f"{at}.conv1d.bias") if part.conv_bias else None  # [C]
        self._dt_bias = weights.float(f"{at}.dt_bias")  # [H]
        self._a = -torch.exp(weights.float(f"{at}.A_log"))  # [H]
        self._skip = weights.float(f"{at}.D")[:, None]
        self._norm = None if part.norm is None else Norm(part.norm, weights)
        self._out = Linear.load(weights, (f"{at}.out_proj",), part.biased_out, (part.out_multiplier,))

    def __call__(self, u: torch.Tensor, step: Step) -> torch.Tensor:
        part, tokens = self._part, u.shape[0]
        run, cache = step.recurrent(self._cache_index)
        # 1. project; convolve x, b and c over time
        group = part.n_groups * part.state_size
        z, xbc, dt = self._in(u, step.lora).split([part.inner_size, part.conv_channels, part.num_heads], dim=-1)
        convolved = F.silu(run.conv(xbc, self._conv_weight, self._conv_bias, cache))
        x, b, c = convolved.split([part.inner_size, group, group], dim=-1)
        # 2. scan in float32
        x = x.view(tokens, part.num_heads, part.head_dim)
        b = b.view(tokens, part.n_groups, part.state_size)
        c = c.view(tokens, part.n_groups, part.state_size)
        delta = F.softplus(dt.float() + self._dt_bias)
        if part.dt_limit != (0.0, float("inf")):
            delta = delta.clamp(*part.dt_limit)
        y = run.scan(x, delta, self._a, b, c, cache).addcmul(x.float(), self._skip).view(tokens, -1)
        # 3. gate, normalise, project back
        gate = F.silu(z.float())
        if self._norm is None:
            y = y * gate
        elif part.norm_before_gate:
            y = self._norm(y) * gate
        else:
            y = self._norm(y * gate)
        return self._out(y.to(u.dtype), step.lora)


def _load_in(part: recurrent.Mamba2, weights: Weights) -> Linear:
    """The input projection with its multipliers in it (computed in float32)."""
    name = f"{part.name}.in_proj"
    if all(factor == 1 for factor in part.multipliers):
        return Linear.load(weights, (name,), part.proj_bias, in_multiplier=part.in_multiplier)
    group = part.n_groups * part.state_size
    sizes = torch.tensor((part.inner_size, part.inner_size, group, group, part.num_heads))
    scale = torch.tensor(part.multipliers, device=weights.device).repeat_interleave(sizes.to(weights.device))
    weight = weights.float(f"{name}.weight") * (scale * part.in_multiplier)[:, None]
    bias = (weights.float(f"{name}.bias") * scale).to(weights.dtype) if part.proj_bias else None
    site = weights.site(name, weight.shape[1], len(weight), scale=scale * part.in_multiplier)
    return Linear((weight.to(weights.dtype),), bias, sites=(site,))
