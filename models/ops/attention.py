"""TorchAttention: paged attention over a mixed batch in plain torch; full and sliding window are one code path.

Decode rows: one batched gather of whole blocks and one scaled_dot_product_attention call (several when row lengths
differ much). Chunks: a loop over the few of them, in pieces of queries, so that neither masks nor masked work grow with
the square of the chunk. Absent keys never enter a product: outside blocks come from the null block (zeros), absent
positions inside a block are zeroed after the gather, and a chunk's gather is cut to exactly the keys it may see.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ..context import AttentionCache, BlockTables, ForwardContext, Ints
from .workspace import Workspace

QUERIES_PER_PIECE = 256
GROUP_WASTE = 1.5  # gathered blocks per needed block above which decode rows are grouped by length


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decode rows that share one gather. L = num_blocks * block_size keys per row, from each row's first block on."""

    tokens: torch.Tensor | None  # [D] flat tokens of the group; None: tokens 0 .. D - 1
    num_rows: int
    num_blocks: int
    blocks: torch.Tensor  # [D * num_blocks]
    absent: torch.Tensor | None  # [n] indices into [D * L] of keys inside real blocks that the row must not see
    bias: torch.Tensor  # [D, 1, 1, L], 0 or -inf


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries begin .. end - 1 (flat tokens) over gathered keys first_key .. end_key - 1 of their chunk."""

    begin: int
    end: int
    first_key: int
    end_key: int
    bias: torch.Tensor | None  # [queries, keys]; None: causal, as many keys as queries


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A row with several tokens: its gathered keys start at the first visible position, `skip` keys into block 0."""

    blocks: torch.Tensor  # [num_blocks]
    skip: int
    pieces: tuple[_Piece, ...]


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """The plan of one step for all layers with the same block tables and window; see `dispatch.AttentionRun`."""

    slot_mapping: torch.Tensor  # [T]
    groups: tuple[_DecodeGroup, ...]
    chunks: tuple[_Chunk, ...]
    workspace: Workspace

    @classmethod
    def plan(
        cls,
        context: ForwardContext,
        tables: BlockTables,
        sliding_window: int | None,
        cache: AttentionCache,
        workspace: Workspace,
    ) -> "TorchAttention":
        """Index arithmetic for the step; `cache` gives dtype, device and the null block of the layers it is for."""
        assert tables.block_size == cache.kv.shape[1]
        decodes = context.num_decodes
        seq_lens = context.seq_lens
        groups: list[_DecodeGroup] = []
        if decodes:
            first = _first_visible(seq_lens[:decodes] - 1, sliding_window)
            groups = _decode_groups(first, seq_lens[:decodes], tables, cache)
        chunks = [
            _plan_chunk(
                tables.table[row],
                tables.block_size,
                int(context.query_start_loc[row]),
                int(context.num_computed_tokens[row]),
                int(seq_lens[row]),
                sliding_window,
                cache.kv,
            )
            for row in range(decodes, context.num_rows)
        ]
        return cls(tables.slot_mapping, tuple(groups), tuple(chunks), workspace)

    def __call__(self, query: torch.Tensor, key_value: torch.Tensor, cache: AttentionCache) -> torch.Tensor:
        """query [T, num_heads, head_size], key_value [T, 2, num_kv_heads, head_size] -> [T, num_heads, head_size]."""
        kv = cache.kv
        num_blocks, block_size, _, num_kv_heads, head_size = kv.shape
        num_tokens, num_heads, _ = query.shape
        slots = kv.view(num_blocks * block_size, -1)
        slots[self.slot_mapping] = key_value.reshape(num_tokens, -1)
        blocks = kv.view(num_blocks, -1)
        grouped = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_size)
        out = torch.empty_like(grouped, memory_format=torch.contiguous_format)
        for group in self.groups:
            self._decode(group, grouped, blocks, kv, out)
        for chunk in self.chunks:
            self._chunk(chunk, grouped, blocks, kv, out)
        return out.view(num_tokens, num_heads, head_size)

    def _gather(self, block_ids: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Whole blocks [n, block_size * 2 * num_kv_heads * head_size], in scratch memory."""
        scratch = self.workspace.take((block_ids.shape[0], blocks.shape[1]), blocks)
        torch.index_select(blocks, 0, block_ids, out=scratch)
        return scratch

    def _decode(
        self, group: _DecodeGroup, query: torch.Tensor, blocks: torch.Tensor, kv: torch.Tensor, out: torch.Tensor
    ) -> None:
        rows, keys = group.num_rows, group.num_blocks * kv.shape[1]
        gathered = self._gather(group.blocks, blocks).view(rows * keys, -1)
        if group.absent is not None:
            gathered.index_fill_(0, group.absent, 0)
        key_value = gathered.view(rows, keys, 2, *kv.shape[3:])
        attended = F.scaled_dot_product_attention(
            query[:rows] if group.tokens is None else query[group.tokens],  # [D, num_kv_heads, heads per kv head, head]
            key_value[:, :, 0].transpose(1, 2),
            key_value[:, :, 1].transpose(1, 2),
            attn_mask=group.bias,
        )
        if group.tokens is None:
            out[:rows] = attended
        else:
            out[group.tokens] = attended

    def _chunk(
        self, chunk: _Chunk, query: torch.Tensor, blocks: torch.Tensor, kv: torch.Tensor, out: torch.Tensor
    ) -> None:
        gathered = self._gather(chunk.blocks, blocks).view(-1, 2, *kv.shape[3:])[chunk.skip :]
        key_value = gathered.permute(1, 2, 0, 3)  # [2, num_kv_heads, keys, head_size]
        heads = query.shape[2]
        for piece in chunk.pieces:
            part = key_value[:, :, None, piece.first_key : piece.end_key].expand(-1, -1, heads, -1, -1)
            attended = F.scaled_dot_product_attention(
                query[piece.begin : piece.end].permute(1, 2, 0, 3),  # [num_kv_heads, heads per kv head, queries, head]
                part[0],
                part[1],
                attn_mask=piece.bias,
                is_causal=piece.bias is None,
            )
            out[piece.begin : piece.end] = attended.permute(2, 0, 1, 3)


def _first_visible(positions: Ints, sliding_window: int | None) -> Ints:
    """The first position that a query at each position sees."""
    if sliding_window is None:
        return np.zeros_like(positions)
    return np.maximum(positions - sliding_window + 1, 0)


def _decode_groups(first: Ints, seq_lens: Ints, tables: BlockTables, cache: AttentionCache) -> list[_DecodeGroup]:
    """All rows in one group, or by powers of two of their block count where one group would gather much for nothing."""
    first_block = first // tables.block_size
    num_blocks = (seq_lens - 1) // tables.block_size - first_block + 1  # [D]
    everyone = np.arange(len(seq_lens))
    if int(num_blocks.max()) * len(seq_lens) <= GROUP_WASTE * int(num_blocks.sum()):
        members = [everyone]
    else:
        bucket = np.ceil(np.log2(num_blocks)).astype(np.int64)
        members = [everyone[bucket == value] for value in np.unique(bucket)]
    return [
        _decode_group(rows, len(members) > 1, first, first_block, num_blocks, seq_lens, tables, cache)
        for rows in members
    ]


def _decode_group(
    rows: Ints,
    partial: bool,
    first: Ints,
    first_block: Ints,
    num_blocks: Ints,
    seq_lens: Ints,
    tables: BlockTables,
    cache: AttentionCache,
) -> _DecodeGroup:
    size, device = tables.block_size, cache.kv.device
    widest = int(num_blocks[rows].max())
    column = np.arange(widest)
    real = column < num_blocks[rows, None]  # [D, widest]
    logical = np.minimum(first_block[rows, None] + column, tables.table.shape[1] - 1)
    blocks = np.where(real, tables.table[rows[:, None], logical], cache.null_block)
    position = first_block[rows, None] * size + np.arange(widest * size)  # [D, L]
    hidden = (position < first[rows, None]) | (position >= seq_lens[rows, None])
    absent = np.flatnonzero(hidden & np.repeat(real, size, axis=1))
    bias = torch.zeros(hidden.shape, dtype=cache.kv.dtype, device=device)
    bias.masked_fill_(torch.from_numpy(hidden).to(device), float("-inf"))
    return _DecodeGroup(
        tokens=torch.from_numpy(rows).to(device) if partial else None,
        num_rows=len(rows),
        num_blocks=widest,
        blocks=torch.from_numpy(blocks.reshape(-1)).to(device),
        absent=torch.from_numpy(absent).to(device) if len(absent) else None,
        bias=bias[:, None, None],
    )


def _plan_chunk(
    table: Ints,  # [num_logical_blocks]
    block_size: int,
    begin: int,
    num_computed: int,
    seq_len: int,
    sliding_window: int | None,
    like: torch.Tensor,
) -> _Chunk:
    """A chunk's tokens num_computed .. seq_len - 1, flat tokens from `begin` on."""
    window = seq_len if sliding_window is None else sliding_window
    first = max(0, num_computed - window + 1)
    first_block = first // block_size
    blocks = table[first_block : (seq_len - 1) // block_size + 1].astype(np.int64)
    pieces = []
    for start in range(num_computed, seq_len, QUERIES_PER_PIECE):
        end = min(start + QUERIES_PER_PIECE, seq_len)
        first_key = max(0, start - window + 1)
        bias = None
        if first_key < start or end - start > window:
            query = torch.arange(start, end, device=like.device)[:, None]
            key = torch.arange(first_key, end, device=like.device)
            visible = (key <= query) & (key > query - window)
            bias = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
            bias.masked_fill_(~visible, float("-inf"))
        offset = begin - num_computed
        pieces.append(_Piece(start + offset, end + offset, first_key - first, end - first, bias))
    return _Chunk(torch.from_numpy(blocks).to(like.device), first - first_block * block_size, tuple(pieces))
