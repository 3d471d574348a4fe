"""Mamba1: the mixer around convolution and selective scan, as in transformers' Mamba, FalconMamba and Jamba mixers.

Glossary: T tokens, W inner channels, N state size, R rank of the step size; z gate, x input, b and c input and output
maps, dt step size, a = -exp(A_log) [N, W], D skip.
"""

import torch
import torch.nn.functional as F

from ..blueprint import recurrent
from ..weights import Weights
from .linear import Linear
from .norm import Norm
from .step import Step


class Mamba1:
    """See `blueprint.recurrent.Mamba1`."""

    def __init__(self, part: recurrent.Mamba1, weights: Weights, cache_index: int) -> None:
        at = part.name
        self._part = part
        self._cache_index = cache_index
        self._in = Linear.load(weights, (f"{at}.in_proj",), part.proj_bias)
        self._conv_weight = weights(f"{at}.conv1d.weight")[:, 0].t().contiguous()  # [K, W]
        self._conv_bias = weights(f"{at}.conv1d.bias") if part.conv_bias else None  # [W]
        self._x = Linear.load(weights, (f"{at}.x_proj",))
        self._norms = tuple(None if n is None else Norm(n, weights) for n in (part.dt_norm, part.b_norm, part.c_norm))
        self._dt = Linear.load(weights, (f"{at}.dt_proj",))
        self._dt_bias = weights.float(f"{at}.dt_proj.bias")  # [W], added in float32
        self._a = -torch.exp(weights.float(f"{at}.A_log")).t().contiguous()
        self._skip = weights.float(f"{at}.D")
        self._out = Linear.load(weights, (f"{at}.out_proj",), part.proj_bias)

    def __call__(self, u: torch.Tensor, step: Step) -> torch.Tensor:
        part = self._part
        run, cache = step.recurrent(self._cache_index)
        # 1. project; convolve x over time
        x, z = self._in(u, step.lora).chunk(2, dim=-1)
        x = F.silu(run.conv(x, self._conv_weight, self._conv_bias, cache))
        # 2. step size and maps, from x
        parts = self._x(x, step.lora).split([part.dt_rank, part.state_size, part.state_size], dim=-1)
        low, b, c = (values if norm is None else norm(values) for norm, values in zip(self._norms, parts))
        delta = F.softplus(self._dt(low, step.lora).float() + self._dt_bias)
        # 3. scan in float32, gate, project back
        y = run.selective_scan(x, delta, self._a, b, c, cache).addcmul(x.float(), self._skip)
        return self._out((y * F.silu(z.float())).to(u.dtype), step.lora)
