"""The functions of `causal_conv1d` as kernels of the causal convolution, see `triton.conv`.

T tokens, C channels, K kernel. The package has channels before time; all it gets are views. It starts either one row
from a state or several from zeros, and writes the states of single tokens; those of chunks are left to our kernel, and
so are batches that it cannot compute. It knows kernels of 2 to 4 and, in chunks, numbers of channels that 8 divides.
"""

from collections.abc import Callable

import torch

from ..triton import conv as ours
from ..triton.recurrent_tables import RecurrentTables
from .placing import place
from .tables import OneChunk

Kernel = Callable[..., torch.Tensor]
VECTOR = 8  # elements that it loads at once, in chunks
VECTOR_BYTES = 16


def decodes(causal_conv1d_update: Kernel) -> Kernel:
    """`ours.decodes` by the package's function."""

    def run(
        tables: RecurrentTables,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        conv: torch.Tensor,
        out: torch.Tensor,
    ) -> torch.Tensor:
        plain = tables.plain
        if plain is None or plain.slots is None or not x.dtype == weight.dtype == conv.dtype:
            return ours.decodes(tables, x, weight, bias, conv, out)
        states = conv.transpose(1, 2)  # [slots, C, K - 1]
        rows = x[: plain.num_decodes]
        part = causal_conv1d_update(rows, states, weight.t(), bias, None, conv_state_indices=plain.short_slots)
        return place(part, 0, out)

    return run


def chunks(causal_conv1d_fn: Kernel) -> Kernel:
    """`ours.chunks` by the package's function."""

    def run(
        tables: RecurrentTables,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        conv: torch.Tensor,
        out: torch.Tensor,
    ) -> torch.Tensor:
        plain = tables.plain
        if plain is None or plain.chunks is None or not x.dtype == weight.dtype == conv.dtype:
            return ours.chunks(tables, x, weight, bias, conv, out)
        tokens = _aligned(x[plain.num_decodes :]).t()[None]  # [1, C, tokens]
        if isinstance(plain.chunks, OneChunk):
            source = plain.chunks.source
            state = None if source is None else conv[source].t()[None]  # [1, C, K - 1]
            part = causal_conv1d_fn(tokens, weight.t(), bias, initial_states=state)
        else:
            part = causal_conv1d_fn(tokens, weight.t(), bias, seq_idx=plain.chunks.rows)
        ours.keep(tables, x, conv)
        return place(part[0].t(), plain.num_decodes, out)

    return run


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """The same, where every token begins as the package's loads need it."""
    if x.stride(0) % VECTOR == 0 and x.data_ptr() % VECTOR_BYTES == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)
