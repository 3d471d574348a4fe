"""TritonOps: the implementation of `dispatch.Ops` by Triton's kernels."""

from ...context import AttentionCache, BlockTables, ForwardContext, StateCache
from ..workspace import Workspace
from .attention import TritonAttention
from .recurrent import TritonRecurrent
from .recurrent_kernels import OURS, RecurrentKernels


class TritonOps:
    """See `dispatch.Ops`."""

    name = "triton"

    def __init__(self, kernels: RecurrentKernels = OURS) -> None:
        self._workspace = Workspace()
        self._kernels = kernels

    def plan_attention(
        self,
        context: ForwardContext,
        tables: BlockTables,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
    ) -> TritonAttention:
        return TritonAttention.plan(context, tables, sliding_window, cache, num_heads, self._workspace)

    def plan_recurrent(self, context: ForwardContext, cache: StateCache) -> TritonRecurrent:
        del cache
        return TritonRecurrent.plan(context, self._kernels)
