"""RecurrentKernels: who computes those recurrent operations of which there are several implementations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import conv, ssd

Kernel = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class RecurrentKernels:
    """Each takes (tables, *inputs of all tokens, states, out), computes its rows and advances their states.

    Gives the results of the whole batch: `out` with those of its rows, or, where there are no others, any tensor like
    it. See `conv` and `ssd`.
    """

    conv_decodes: Kernel
    conv_chunks: Kernel
    ssd_decodes: Kernel
    ssd_chunks: Kernel


OURS = RecurrentKernels(conv.decodes, conv.chunks, ssd.decodes, ssd.chunks)
