"""CpuOps: plain torch with compiled kernels for decode rows, where numba is installed and caches are float32.

Chunks and everything that has no kernel stay with torch. Results differ by rounding only.
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

from ..context import AttentionCache, BlockTables, ForwardContext, Ints, StateCache
from .attention import Decodes, Scores, TorchAttention
from .conv import conv_chunks, conv_decodes
from .recurrent import Operation, Operations, TorchRecurrent
from .recurrent_plan import Decodes as RecurrentDecodes
from .ssd import ssd_chunks, ssd_decodes
from .torch_ops import TorchOps

float32 = np.float32


@cache
def is_available() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


@cache
def _start() -> ModuleType:
    """The compiled kernels: compiled now, or read from numba's cache.

    numba and torch share one OpenMP; numba's start sets its number of threads, which torch's must undo.
    """
    from numba.np.ufunc import parallel

    from . import cpu_kernels

    threads, start = torch.get_num_threads(), vars(parallel)["_launch_threads"]
    start()
    torch.set_num_threads(threads)
    return cpu_kernels


def kernels() -> ModuleType:
    """The compiled kernels, with as many threads as torch uses."""
    import numba

    started = _start()
    most: int = vars(numba.config)["NUMBA_NUM_THREADS"]
    numba.set_num_threads(min(torch.get_num_threads(), most))
    return started


class CpuOps(TorchOps):
    """See `dispatch.Ops`. Steps of decodes alone, as graphs have them, are plain torch."""

    name = "cpu"

    def plan_attention(
        self,
        context: ForwardContext,
        tables: BlockTables,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
    ) -> TorchAttention:
        del num_heads
        plan_decodes = KernelDecodes.plan if cache.kv.dtype == torch.float32 else None
        return TorchAttention.plan(context, tables, sliding_window, cache, self._workspace, plan_decodes)

    def plan_recurrent(self, context: ForwardContext, cache: StateCache) -> TorchRecurrent:
        return TorchRecurrent.plan(context, cache, OPERATIONS)


@dataclass(frozen=True, slots=True)
class KernelDecodes:
    """All decode rows, attended without a gather."""

    first: Ints  # [D]
    ends: Ints  # [D]
    table: Ints  # [D, blocks]

    @classmethod
    def plan(cls, first: Ints, ends: Ints, table: Ints, cache: AttentionCache) -> tuple[Decodes, ...]:
        del cache
        wide = (np.ascontiguousarray(values, dtype=np.int64) for values in (first, ends, table))
        return (cls(*wide),)

    def __call__(self, query: torch.Tensor, kv: torch.Tensor, scores: Scores, out: torch.Tensor) -> None:
        """See `attention.Decodes`."""
        rows = len(self.ends)
        sinks = np.zeros(0, dtype=np.float32) if scores.sinks is None else scores.sinks.flatten().numpy()
        kernels().attend(
            query[:rows].flatten(1, 2).contiguous().numpy(),
            kv.numpy(),
            self.table,
            self.first,
            self.ends,
            np.float32(scores.scale),
            np.float32(scores.softcap or 0),
            sinks,
            out[:rows].flatten(1, 2).numpy(),
        )


def kernel_ssd_decodes(
    plan: RecurrentDecodes,
    x: torch.Tensor,
    dt: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    a: torch.Tensor,
    ssm: torch.Tensor,
) -> torch.Tensor:
    """See `ssd.ssd_decodes`."""
    if ssm.dtype != torch.float32:
        return ssd_decodes(plan, x, dt, b, c, a, ssm)
    y = torch.empty(x.shape)
    kernels().ssd_step(
        ssm.numpy(),
        plan.slots.numpy(),
        _fresh(plan),
        torch.exp(dt * a).numpy(),
        (x * dt[:, :, None]).numpy(),
        b.contiguous().numpy(),
        c.contiguous().numpy(),
        y.numpy(),
    )
    _copy_states(plan, ssm)
    return y


def kernel_conv_decodes(
    plan: RecurrentDecodes, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, conv: torch.Tensor
) -> torch.Tensor:
    """See `conv.conv_decodes`."""
    if not (x.dtype == weight.dtype == conv.dtype == torch.float32):
        return conv_decodes(plan, x, weight, bias, conv)
    out = torch.empty(x.shape)
    added = np.zeros(0, dtype=np.float32) if bias is None else bias.numpy()
    args = (x.contiguous().numpy(), weight.numpy(), added, out.numpy())
    kernels().conv_step(conv.numpy(), plan.slots.numpy(), _fresh(plan), *args)
    _copy_states(plan, conv)
    return out


def _fresh(plan: RecurrentDecodes) -> NDArray[np.bool_]:
    return np.zeros(plan.num_rows, dtype=np.bool_) if plan.fresh is None else plan.fresh.flatten().numpy()


def _copy_states(plan: RecurrentDecodes, states: torch.Tensor) -> None:
    """Snapshots of rows with one token."""
    if plan.copy_rows is not None and plan.copy_slots is not None:
        states.index_copy_(0, plan.copy_slots, states.index_select(0, plan.slots.index_select(0, plan.copy_rows)))


OPERATIONS = Operations(conv=Operation(kernel_conv_decodes, conv_chunks), ssd=Operation(kernel_ssd_decodes, ssd_chunks))
