"""Step: what the layers of one forward pass share: context, rotary tables, operation plans made on first use."""

import torch

from ..blueprint.rope import Rope
from ..context import AttentionCache, Context, DecodeContext, StateCache
from ..ops.decode_lora import Lora
from ..ops.dispatch import AttentionRun, Ops, RecurrentRun
from .rotary import Rotary


class Step:
    """One forward pass. `embeddings` [num_tokens, hidden_size] is what the first layer reads; `per_layer` [num_tokens,
    num_layers, size] what every layer gets beside, see `per_layer`."""

    def __init__(
        self, context: Context, ops: Ops, embeddings: torch.Tensor, per_layer: torch.Tensor | None = None
    ) -> None:
        self.context = context
        self.embeddings = embeddings
        self.per_layer = per_layer
        self._ops = ops
        self._rotary: dict[Rope, Rotary] = {}
        self._attention: dict[tuple[object, ...], AttentionRun] = {}
        self._recurrent: dict[int, RecurrentRun] = {}

    @property
    def lora(self) -> Lora | None:
        """What adapters do to the step's tokens; None: nothing."""
        return self.context.lora

    def rotary(self, rope: Rope) -> Rotary:
        """Cosines and sines of the step's positions."""
        if rope not in self._rotary:
            positions = None if rope.axes is None else self.context.image_positions
            positions = self.context.positions if positions is None else positions
            self._rotary[rope] = Rotary.at(rope, positions, self.embeddings.dtype)
        return self._rotary[rope]

    def attention(
        self, cache_index: int, sliding_window: int | None, num_heads: int
    ) -> tuple[AttentionRun, AttentionCache]:
        """The attention operation of a layer, and its keys and values. num_heads: of queries."""
        cache = self.context.caches[cache_index]
        assert isinstance(cache, AttentionCache)
        key = (sliding_window, cache.kv.shape, num_heads)
        if key not in self._attention:
            self._attention[key] = self._plan_attention(sliding_window, cache, num_heads)
        return self._attention[key], cache

    def _plan_attention(self, sliding_window: int | None, cache: AttentionCache, num_heads: int) -> AttentionRun:
        context = self.context
        if isinstance(context, DecodeContext):
            table = context.full if sliding_window is None else context.window
            assert table is not None, "the context lacks the block table of a layer"
            return self._ops.plan_decode_attention(context, table, sliding_window, cache, num_heads)
        tables = context.full if sliding_window is None else context.window
        assert tables is not None, "the context lacks the block tables of a layer"
        return self._ops.plan_attention(context, tables, sliding_window, cache, num_heads)

    def recurrent(self, cache_index: int) -> tuple[RecurrentRun, StateCache]:
        """The recurrent operations of a layer, and its states."""
        cache = self.context.caches[cache_index]
        assert isinstance(cache, StateCache)
        kernel = cache.conv.shape[1] + 1
        if kernel not in self._recurrent:
            if isinstance(self.context, DecodeContext):
                self._recurrent[kernel] = self._ops.plan_decode_recurrent(self.context)
            else:
                self._recurrent[kernel] = self._ops.plan_recurrent(self.context, cache)
        return self._recurrent[kernel], cache
