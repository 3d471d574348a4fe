"""The functions of `mamba_ssm` as kernels of the scan of Mamba-2, see `triton.ssd`.

Symbols: see `ops/ssd.py`. Single tokens are computed in float32. The scan of chunks starts either one row from a state
or several from zeros, and of the latter keeps states in the dtype of c between its blocks and at the end. What neither
can do (snapshots, rows that start from zeros among others, states that are not to be written) is left to our kernels.
"""

from collections.abc import Callable
from functools import cache

import torch

from ..triton import ssd as ours
from ..triton.recurrent_tables import RecurrentTables
from .placing import place
from .tables import OneChunk

Kernel = Callable[..., torch.Tensor]
BLOCK = 256  # tokens of a block of the chunked scan, as the package's own model has it


def decodes(selective_state_update: Kernel) -> Kernel:
    """`ours.decodes` by the package's function."""

    def run(
        tables: RecurrentTables,
        x: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        ssm: torch.Tensor,
        y: torch.Tensor,
    ) -> torch.Tensor:
        plain = tables.plain
        if plain is None or plain.slots is None:
            return ours.decodes(tables, x, dt, a, b, c, ssm, y)
        count, (_, heads, channels, size) = plain.num_decodes, ssm.shape
        # strides of 0 tell it that all channels of a head decay alike; some versions fail without D and dt_bias
        none = _zero(x.device).expand(heads, channels)
        part = selective_state_update(
            ssm,
            x[:count].float(),  # its results have the dtype of x
            dt[:count, :, None].expand(count, heads, channels),
            a[:, None, None].expand(heads, channels, size),
            b[:count],
            c[:count],
            D=none,
            dt_bias=none,
            state_batch_indices=plain.slots,
        )
        return place(part, 0, y)

    return run


def chunks(mamba_chunk_scan_combined: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Kernel:
    """`ours.chunks` by the package's function."""

    def run(
        tables: RecurrentTables,
        x: torch.Tensor,
        dt: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        ssm: torch.Tensor,
        y: torch.Tensor,
    ) -> torch.Tensor:
        plain = tables.plain
        if plain is None or plain.chunks is None or plain.targets is None:
            return ours.chunks(tables, x, dt, a, b, c, ssm, y)
        begin = plain.num_decodes
        inputs = (x[None, begin:], dt[None, begin:], a, b[None, begin:], c[None, begin:], BLOCK)
        if isinstance(plain.chunks, OneChunk):
            source = plain.chunks.source
            state = None if source is None else ssm[None, source]
            part, states = mamba_chunk_scan_combined(*inputs, initial_states=state, return_final_states=True)
        else:
            part, states = mamba_chunk_scan_combined(
                *inputs, seq_idx=plain.chunks.rows, cu_seqlens=plain.chunks.bounds, return_varlen_states=True
            )
        ssm.index_copy_(0, plain.targets, states.to(ssm.dtype))
        return place(part[0], begin, y)

    return run


@cache
def _zero(device: torch.device) -> torch.Tensor:
    return torch.zeros(1, device=device)
