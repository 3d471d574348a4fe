"""RGLRU: the recurrent block of Griffin (De et al. 2024, section 2.4), as in transformers' RecurrentGemma.

Glossary: T tokens, W width, H heads (blocks of the gates); r recurrence gate, i input gate, a = exp(log_a) decay:
  log_a = -8 r softplus(recurrent_param),  h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t)
At position 0 there is nothing to decay, and the input counts in full.
"""

import torch
import torch.nn.functional as F

from ..blueprint import recurrent
from ..ops.elementwise import activate
from ..weights import Weights
from .linear import Linear
from .step import Step

SHARPNESS = 8.0  # c in the paper


class RGLRU:
    """See `blueprint.recurrent.RGLRU`."""

    def __init__(self, part: recurrent.RGLRU, weights: Weights, cache_index: int) -> None:
        at = part.name
        self._part = part
        self._cache_index = cache_index
        self._in = Linear.load(weights, (f"{at}.linear_y", f"{at}.linear_x"), bias=True)
        self._conv_weight = weights(f"{at}.conv_1d.weight")[:, 0].t().contiguous()  # [K, W]
        self._conv_bias = weights(f"{at}.conv_1d.bias")  # [W]
        gates = tuple(f"{at}.rg_lru.{gate}" for gate in ("input_gate", "recurrent_gate"))
        self._gates = torch.cat([weights(f"{gate}_weight") for gate in gates], dim=2)  # [H, W / H, 2 W / H]
        self._gates_bias = torch.cat([weights(f"{gate}_bias") for gate in gates], dim=1)[:, None]
        self._decay = -SHARPNESS * F.softplus(weights.float(f"{at}.rg_lru.recurrent_param"))  # [W]
        self._out = Linear.load(weights, (f"{at}.linear_out",), bias=True)

    def __call__(self, u: torch.Tensor, step: Step) -> torch.Tensor:
        tokens = u.shape[0]
        run, cache = step.recurrent(self._cache_index)
        beside, x = self._in(u, step.lora).chunk(2, dim=-1)
        x = run.conv(x, self._conv_weight, self._conv_bias, cache)
        # 1. gates, block-diagonal
        heads = x.view(tokens, self._part.num_heads, -1).transpose(0, 1)  # [H, T, W / H]
        gates = torch.sigmoid(torch.baddbmm(self._gates_bias, heads, self._gates).float())
        enter, recur = (gate.transpose(0, 1).reshape(tokens, -1) for gate in gates.chunk(2, dim=-1))  # [T, W]
        # 2. the recurrence in float32
        log_decay = recur * self._decay
        share = torch.sqrt(1 - torch.exp(2 * log_decay))
        share.masked_fill_((step.context.positions == 0)[:, None], 1)
        h = run.gated_scan(x.float() * enter * share, log_decay, cache)
        # 3. the other branch as a gate, project back
        return self._out(activate(self._part.activation, beside) * h.to(u.dtype), step.lora)
