"""GatedDeltaNet: projections, convolution, gates and norm around the gated delta rule.

Source: Yang et al. 2024, "Gated Delta Networks", as in transformers' `modeling_qwen3_next.py`, `modeling_qwen3_5.py`
and `modeling_olmo_hybrid.py`. T tokens, G key heads, H value heads, K and V channels per head.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from ..blueprint import recurrent
from ..lora_site import LoraSite
from ..weights import Weights
from .linear import Linear
from .norm import Norm
from .step import Step

UNIT_EPS = 1e-6  # added to the squared length of queries and keys


class GatedDeltaNet:
    """See `blueprint.recurrent.GatedDeltaNet`."""

    def __init__(self, part: recurrent.GatedDeltaNet, weights: Weights, cache_index: int) -> None:
        at = part.name
        self._part = part
        self._cache_index = cache_index
        self._in = Linear(_projections(part, weights), sites=_sites(part, weights))
        if part.layout == "separate":
            taps = torch.cat([weights(name) for name in part.separate_convs])
        else:
            taps = weights(f"{at}.conv1d.weight")
        self._conv_weight = taps[:, 0].t().contiguous()  # [kernel, channels]
        self._dt_bias = weights.float(f"{at}.dt_bias")  # [H]
        self._a = -torch.exp(weights.float(f"{at}.A_log"))  # [H]
        self._norm = Norm(part.norm, weights)
        self._out = Linear.load(weights, (f"{at}.{'o_proj' if part.layout == 'separate' else 'out_proj'}",))

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        part, tokens = self._part, x.shape[0]
        run, cache = step.recurrent(self._cache_index)
        # 1. project; convolve q, k and v over time
        sizes = [part.conv_channels, part.value_size, part.num_v_heads, part.num_v_heads]
        qkv, z, b, a = self._in(x, step.lora).split(sizes, dim=-1)
        convolved = F.silu(run.conv(qkv, self._conv_weight, None, cache)).float()
        q, k, v = convolved.split([part.key_size, part.key_size, part.value_size], dim=-1)
        # 2. queries and keys of unit length, gates, delta rule; in float32
        q, k = (_unit(heads.view(tokens, part.num_k_heads, part.k_head_dim)) for heads in (q, k))
        v = v.view(tokens, part.num_v_heads, part.v_head_dim)
        beta = torch.sigmoid(b.float())
        if part.negative_eigenvalues:
            beta = beta * 2
        g = self._a * F.softplus(a.float() + self._dt_bias)
        y = run.delta_rule(q * part.k_head_dim**-0.5, k, v, g, beta, cache)  # [T, H, V]
        # 3. normalise each head, gate, project back
        y = self._norm(y) * F.silu(z.float()).view(y.shape)
        return self._out(y.view(tokens, -1).to(x.dtype), step.lora)


def _unit(heads: torch.Tensor) -> torch.Tensor:
    return heads * torch.rsqrt(heads.square().sum(dim=-1, keepdim=True) + UNIT_EPS)


def _projections(part: recurrent.GatedDeltaNet, weights: Callable[[str], torch.Tensor]) -> list[torch.Tensor]:
    """Rows that give q, k, v, z, b and a, in this order, whatever the checkpoint's."""
    at, groups = part.name, part.num_k_heads
    if part.layout == "fused":
        heads, values = part.num_v_heads // groups, part.value_size // groups  # of one key head
        qkvz = weights(f"{at}.in_proj_qkvz.weight").unflatten(0, (groups, -1))
        ba = weights(f"{at}.in_proj_ba.weight").unflatten(0, (groups, -1))
        parts = (*qkvz.split([part.k_head_dim, part.k_head_dim, values, values], 1), *ba.split([heads, heads], 1))
        return [rows.flatten(0, 1) for rows in parts]
    if part.layout == "split":
        return [weights(f"{at}.in_proj_{name}.weight") for name in ("qkv", "z", "b", "a")]
    return [weights(f"{at}.{name}_proj.weight") for name in "qkvgba"]


def _sites(part: recurrent.GatedDeltaNet, weights: Weights) -> list[LoraSite]:
    """Of each projection: where its rows, in whatever order, stand in the output of all."""
    sites, offset = [], 0
    shapes = part.tensors()
    read: list[str] = []

    def numbered(name: str) -> torch.Tensor:
        """The rows' numbers instead of the rows."""
        read.append(name)
        return torch.arange(shapes[name][0])[:, None] + sum(shapes[one][0] for one in read[:-1])

    order = torch.cat(_projections(part, numbered)).flatten()  # of all projections' rows, one after the other
    for name in read:
        outputs, inputs = shapes[name]
        mine = order[offset : offset + outputs] - offset  # every projection's rows stay together
        sites.append(weights.site(name.removesuffix(".weight"), inputs, outputs, offset, order=mine.to(weights.device)))
        offset += outputs
    return sites
