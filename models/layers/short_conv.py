"""ShortConv: a gated convolution over the last few tokens, as in transformers' `modeling_lfm2.py`."""

import torch

from ..blueprint import recurrent
from ..weights import Weights
from .linear import Linear
from .step import Step


class ShortConv:
    """See `blueprint.recurrent.ShortConv`."""

    def __init__(self, part: recurrent.ShortConv, weights: Weights, cache_index: int) -> None:
        at = part.name
        self._cache_index = cache_index
        self._in = Linear.load(weights, (f"{at}.in_proj",), part.bias)
        self._conv_weight = weights(f"{at}.conv.weight")[:, 0].t().contiguous()  # [kernel, hidden_size]
        self._conv_bias = weights(f"{at}.conv.bias") if part.bias else None
        self._out = Linear.load(weights, (f"{at}.out_proj",), part.bias)

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        run, cache = step.recurrent(self._cache_index)
        b, c, inner = self._in(x, step.lora).chunk(3, dim=-1)
        return self._out(c * run.conv(b * inner, self._conv_weight, self._conv_bias, cache), step.lora)
