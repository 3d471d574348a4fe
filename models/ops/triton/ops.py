"""TritonOps: the implementation of `dispatch.Ops` by Triton's kernels."""

import torch

from ...context import AttentionCache, BlockTables, DecodeContext, ForwardContext, StateCache
from ..workspace import Workspace
from .attention import TritonAttention
from .decode_attention import plan_decodes
from .recurrent import TritonRecurrent
from .recurrent_kernels import OURS, RecurrentKernels


class TritonOps:
    """See `dispatch.Ops`."""

    name = "triton"
    captures = True

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

    def plan_decode_attention(
        self,
        context: DecodeContext,
        table: torch.Tensor,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
    ) -> TritonAttention:
        return plan_decodes(context, table, sliding_window, cache, num_heads)

    def plan_decode_recurrent(self, context: DecodeContext) -> TritonRecurrent:
        return TritonRecurrent.of_decodes(context)
