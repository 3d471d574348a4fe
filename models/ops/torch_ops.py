"""TorchOps: the implementation of `dispatch.Ops` in plain torch, on any device: what kernels are compared with."""

import torch

from ..context import AttentionCache, BlockTables, DecodeContext, ForwardContext, StateCache
from .attention import TorchAttention
from .decode import DecodeAttention, DecodeRecurrent
from .recurrent import TorchRecurrent
from .workspace import Workspace


class TorchOps:
    """See `dispatch.Ops`."""

    name = "torch"
    captures = False

    def __init__(self) -> None:
        self._workspace = Workspace()

    def plan_attention(
        self,
        context: ForwardContext,
        tables: BlockTables,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
    ) -> TorchAttention:
        del num_heads
        return TorchAttention.plan(context, tables, sliding_window, cache, self._workspace)

    def plan_recurrent(self, context: ForwardContext, cache: StateCache) -> TorchRecurrent:
        return TorchRecurrent.plan(context, cache)

    def plan_decode_attention(
        self,
        context: DecodeContext,
        table: torch.Tensor,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
    ) -> DecodeAttention:
        del num_heads
        return DecodeAttention.plan(context, table, sliding_window, cache)

    def plan_decode_recurrent(self, context: DecodeContext) -> DecodeRecurrent:
        return DecodeRecurrent.of_decodes(context)
