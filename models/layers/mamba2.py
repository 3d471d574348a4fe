"""Mamba2: the mixer around convolution and scan, as in transformers' Mamba2 and Bamba mixers.

Glossary: T tokens, H heads, P channels per head, N state size, G groups, d_inner = H P, C = d_inner + 2 G N channels of
the convolution; z gate, x input, b and c input and output maps, dt step size, a = -exp(A_log), D skip.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..context import StateCache
from ..ops.dispatch import MambaRun
from .linear import Linear
from .norm import RMSNorm


@dataclass(frozen=True, slots=True)
class Mamba2Sizes:
    """H, P, N and G of the glossary."""

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        return self.num_groups * self.state_size


class Mamba2:
    """[T, hidden_size] -> [T, hidden_size]."""

    def __init__(
        self,
        sizes: Mamba2Sizes,
        in_proj: torch.Tensor,  # [d_inner + C + H, hidden_size]: z, xbc, dt
        conv_weight: torch.Tensor,  # [C, 1, K]
        conv_bias: torch.Tensor,  # [C]
        dt_bias: torch.Tensor,  # [H]
        a_log: torch.Tensor,  # [H]
        skip: torch.Tensor,  # [H]
        norm: RMSNorm,  # over d_inner
        out_proj: torch.Tensor,  # [hidden_size, d_inner]
    ) -> None:
        self.sizes = sizes
        self.in_proj = Linear((in_proj,))
        self.conv_weight = conv_weight[:, 0].t().contiguous()  # [K, C]
        self.conv_bias = conv_bias
        self.dt_bias = dt_bias.float()
        self.a = -torch.exp(a_log.float())
        self.skip = skip.float()[:, None]
        self.norm = norm
        self.out_proj = Linear((out_proj,))

    def __call__(self, u: torch.Tensor, run: MambaRun, cache: StateCache) -> torch.Tensor:
        sizes, tokens = self.sizes, u.shape[0]
        # 1. project; convolve x, b and c over time
        channels = sizes.inner_size + 2 * sizes.group_size
        z, xbc, dt = self.in_proj(u).split([sizes.inner_size, channels, sizes.num_heads], dim=-1)
        convolved = run.conv(xbc, self.conv_weight, self.conv_bias, cache)
        x, b, c = convolved.split([sizes.inner_size, sizes.group_size, sizes.group_size], dim=-1)
        # 2. scan in float32
        x = x.float().view(tokens, sizes.num_heads, sizes.head_dim)
        b = b.view(tokens, sizes.num_groups, sizes.state_size)
        c = c.view(tokens, sizes.num_groups, sizes.state_size)
        step = F.softplus(dt.float() + self.dt_bias)
        y = run.scan(x, step, self.a, b, c, cache).addcmul(x, self.skip)
        # 3. gate, normalise, project back
        gated = y.view(tokens, -1).mul_(F.silu(z.float()))
        return self.out_proj(self.norm(gated).to(u.dtype))
