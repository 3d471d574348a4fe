"""The operations of a decode step whose indices lie on the device (`DecodeContext`), in plain torch.

The reference of kernels that a graph replays. It is no part of a graph itself: it asks the device how long rows are and
which are nobody's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..context import AttentionCache, DecodeContext
from .attention import Scores
from .deferred import PerToken
from .recurrent import TORCH, Constants, Operation, TorchRecurrent
from .recurrent_plan import Decodes


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """The plan of one step for all layers with the same tables and window; see `dispatch.AttentionRun`."""

    live: torch.Tensor  # [n] batch rows that are somebody's
    block: torch.Tensor  # [n] where their keys and values go
    offset: torch.Tensor  # [n]
    blocks: torch.Tensor  # [D, W] to gather
    hidden: torch.Tensor  # [D, W * block_size] keys of these that the row does not see

    @classmethod
    def plan(
        cls, context: DecodeContext, table: torch.Tensor, sliding_window: int | None, cache: AttentionCache
    ) -> "DecodeAttention":
        """table [num_rows + 1, blocks] of the pool that the layers use; `cache` gives the block size."""
        size, last = cache.kv.shape[3], context.positions[:, None]
        blocks = table[context.rows, : int(last.max()) // size + 1].long()
        live = (context.rows != context.nobody).nonzero()[:, 0]
        position = torch.arange(blocks.shape[1] * size, device=blocks.device)
        hidden = position > last
        if sliding_window is not None:
            hidden |= position <= last - sliding_window
        own = blocks.gather(1, last // size)[:, 0]
        return cls(live, own[live], (last[:, 0] % size)[live], blocks, hidden)

    def __call__(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor | None,
        cache: AttentionCache,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [D, num_heads, head_size], key_value [D, 2, num_kv_heads, head_size] -> [D, num_heads, head_size]."""
        kv = cache.kv
        num_kv_heads, _, head_size = kv.shape[2:]
        if key_value is not None:
            kv[self.block, :, :, self.offset] = key_value[self.live]
        gathered = kv[self.blocks].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)  # [2, D, num_kv_heads, keys, head_size]
        key, value = gathered.masked_fill(self.hidden[:, None, :, None], 0)
        bias = torch.zeros_like(self.hidden, dtype=kv.dtype).masked_fill_(self.hidden, float("-inf"))[:, None, None]
        scores = Scores(scale, softcap, None if sinks is None else sinks.view(num_kv_heads, -1, 1))
        grouped = query.view(len(query), num_kv_heads, -1, head_size)
        if scores.plain:
            attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=bias, scale=scale)
        else:
            attended = scores.attend(grouped, key, value, bias, scores.sinks)
        return attended.reshape(query.shape)


@dataclass(frozen=True, slots=True)
class DecodeRecurrent(TorchRecurrent):
    """The plan of one step for all recurrent layers; see `dispatch.RecurrentRun`. Works on copies of the states."""

    live: torch.Tensor  # [n] batch rows that are somebody's
    slots: torch.Tensor  # [D]

    @classmethod
    def of_decodes(cls, context: DecodeContext) -> "DecodeRecurrent":
        slots = context.state_slots[context.rows]
        copies = torch.arange(len(slots), device=slots.device)
        decodes = Decodes(len(slots), copies, (context.positions == 0)[:, None, None], None, None)
        return cls(
            decodes=decodes,
            chunks=None,
            recorder=None,
            operations=TORCH,
            live=(slots >= 0).nonzero()[:, 0],
            slots=slots.clamp(min=0),
        )

    def apply(self, operation: Operation, inputs: PerToken, constants: Constants, states: torch.Tensor) -> torch.Tensor:
        """See TorchRecurrent. Mutates the states of the rows that are somebody's."""
        copies = states.index_select(0, self.slots)
        out = operation.decodes(self.decodes, *inputs, *constants, copies)
        states.index_copy_(0, self.slots[self.live], copies[self.live])
        return out
