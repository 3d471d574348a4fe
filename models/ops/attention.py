"""TorchAttention: paged attention over a mixed batch in plain torch; full and sliding window are one code path.

Decode rows: one batched gather of whole blocks and one scaled_dot_product_attention call (several when row lengths
differ much). Chunks: a loop over the few of them, in pieces of queries, so that neither masks nor masked work grow with
the square of the chunk. Absent keys never enter a product: outside blocks come from the null block (zeros), absent
positions inside a block are zeroed after the gather, and a chunk's gather is cut to exactly the keys it may see.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from ..context import AttentionCache, BlockTables, ForwardContext, Ints
from .transfer import upload
from .workspace import Workspace

QUERIES_PER_PIECE = 256
GROUP_WASTE = 1.5  # gathered blocks per needed block above which decode rows are grouped by length


class Decodes(Protocol):
    """Decode rows of the batch, or some of them."""

    def __call__(self, query: torch.Tensor, kv: torch.Tensor, scores: "Scores", out: torch.Tensor) -> None:
        """query and out [T, num_kv_heads, heads per kv head, head_size]. Mutates the rows' part of `out`."""
        ...


# (first visible position and end of every decode row, their blocks, any layer's keys and values) -> who attends
PlanDecodes = Callable[[Ints, Ints, Ints, AttentionCache], "tuple[Decodes, ...]"]


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decode rows that share one gather of L keys per row, whole blocks from each row's first visible one on."""

    tokens: torch.Tensor | None  # [D] flat tokens of the group; None: tokens 0 .. D - 1
    num_rows: int
    parts: torch.Tensor  # [2 * D * num_kv_heads * blocks per row] what to gather, see `_parts`
    absent: torch.Tensor | None  # [n] gathered keys and values, flat, inside real blocks that the row must not see
    bias: torch.Tensor  # [D, 1, 1, L], 0 or -inf
    workspace: Workspace

    def __call__(self, query: torch.Tensor, kv: torch.Tensor, scores: "Scores", out: torch.Tensor) -> None:
        """See Decodes."""
        gathered = _gather(self.parts, kv, self.workspace)
        if self.absent is not None:
            gathered.view(-1, kv.shape[4]).index_fill_(0, self.absent, 0)
        key_value = gathered.view(2, self.num_rows, kv.shape[2], -1, kv.shape[4])  # [2, D, num_kv_heads, L, head_size]
        rows = slice(self.num_rows) if self.tokens is None else self.tokens
        queries = query[rows]  # [D, num_kv_heads, heads per kv head, head_size]
        if scores.plain:
            out[rows] = F.scaled_dot_product_attention(
                queries, key_value[0], key_value[1], attn_mask=self.bias, scale=scores.scale
            )
        else:
            out[rows] = scores.attend(queries, key_value[0], key_value[1], self.bias, scores.sinks)


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

    parts: torch.Tensor  # [2 * num_kv_heads * num_blocks]
    skip: int
    pieces: tuple[_Piece, ...]


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """The plan of one step for all layers with the same block tables and window; see `dispatch.AttentionRun`."""

    writes: torch.Tensor  # [T * 2 * num_kv_heads] where the batch's keys and values go: rows of kv.view(-1, head_size)
    decodes: tuple[Decodes, ...]
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
        plan_decodes: PlanDecodes | None = None,
    ) -> "TorchAttention":
        """Index arithmetic for the step; `cache` gives shape, dtype and null block of the layers it is for.

        plan_decodes: who attends for decode rows; None: gathers of blocks.
        """
        _, _, num_kv_heads, block_size, _ = cache.kv.shape
        assert tables.block_size == block_size
        decodes = context.num_decodes
        seq_lens = context.seq_lens
        groups: tuple[Decodes, ...] = ()
        if decodes:
            ends = seq_lens[:decodes]
            first = np.zeros_like(ends) if sliding_window is None else np.maximum(ends - sliding_window, 0)
            table = tables.table[:decodes]
            if plan_decodes is None:
                groups = _decode_groups(first, ends, table, cache, workspace)
            else:
                groups = plan_decodes(first, ends, table, cache)
        chunks = [
            _plan_chunk(
                tables.table[row],
                int(context.query_start_loc[row]),
                int(context.num_computed_tokens[row]),
                int(seq_lens[row]),
                sliding_window,
                cache.kv,
                _groups(context, row),
            )
            for row in range(decodes, context.num_rows)
        ]
        block, offset = np.divmod(tables.slot_mapping, block_size)
        heads = np.arange(2 * num_kv_heads)
        writes = (block[:, None] * len(heads) + heads) * block_size + offset[:, None]  # [T, 2 * num_kv_heads]
        return cls(upload(writes.reshape(-1), cache.kv.device), groups, tuple(chunks), workspace)

    def __call__(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor | None,
        cache: AttentionCache,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [T, num_heads, head_size], key_value [T, 2, num_kv_heads, head_size] -> [T, num_heads, head_size]."""
        kv = cache.kv
        num_kv_heads, head_size = kv.shape[2], kv.shape[4]
        num_tokens, num_heads, _ = query.shape
        if key_value is not None:
            kv.view(-1, head_size).index_copy_(0, self.writes, key_value.reshape(-1, head_size))
        scores = Scores(scale, softcap, None if sinks is None else sinks.view(num_kv_heads, -1, 1))
        grouped = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_size)
        out = torch.empty_like(grouped, memory_format=torch.contiguous_format)
        for decodes in self.decodes:
            decodes(grouped, kv, scores, out)
        for chunk in self.chunks:
            self._chunk(chunk, grouped, kv, scores, out)
        return out.view(num_tokens, num_heads, head_size)

    def _chunk(self, chunk: _Chunk, query: torch.Tensor, kv: torch.Tensor, scores: "Scores", out: torch.Tensor) -> None:
        gathered = _gather(chunk.parts, kv, self.workspace).view(2, kv.shape[2], -1, kv.shape[4])[:, :, chunk.skip :]
        heads = query.shape[2]
        for piece in chunk.pieces:
            part = gathered[:, :, None, piece.first_key : piece.end_key].expand(-1, -1, heads, -1, -1)
            queries = query[piece.begin : piece.end].permute(
                1, 2, 0, 3
            )  # [num_kv_heads, heads per kv head, queries, head]
            if scores.plain:
                causal = piece.bias is None
                attended = F.scaled_dot_product_attention(
                    queries, part[0], part[1], attn_mask=piece.bias, is_causal=causal, scale=scores.scale
                )
            else:
                sinks = None if scores.sinks is None else scores.sinks[..., None]
                attended = scores.attend(queries, part[0], part[1], piece.bias, sinks)
            out[piece.begin : piece.end] = attended.permute(2, 0, 1, 3)


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores come about, beside the product of query and key."""

    scale: float
    softcap: float | None
    sinks: torch.Tensor | None  # [num_kv_heads, heads per kv head, 1]

    @property
    def plain(self) -> bool:
        """Whether scaled_dot_product_attention computes them."""
        return self.softcap is None and self.sinks is None

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """query [..., queries, head], key and value [..., keys, head], sinks [..., queries or 1, 1] -> like query.

        bias None: causal, as many keys as queries.
        """
        scores = torch.matmul(query, key.transpose(-1, -2)).float() * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if bias is None:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
            scores = scores.masked_fill(future, float("-inf"))
        else:
            scores = scores + bias
        if sinks is None:
            weights = scores.softmax(dim=-1)
        else:
            weights = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1).softmax(dim=-1)[..., :-1]
        return torch.matmul(weights.to(value.dtype), value)


def _gather(parts: torch.Tensor, kv: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """One head's keys or values of a block per entry of `parts`: [n, block_size, head_size], in scratch memory."""
    scratch = workspace.take((parts.shape[0], *kv.shape[3:]), kv)
    torch.index_select(kv.view(-1, *kv.shape[3:]), 0, parts, out=scratch)
    return scratch


def _parts(blocks: Ints, num_kv_heads: int) -> Ints:
    """Rows of kv.view(-1, block_size, head_size) that hold `blocks` [D, n]: order (k or v, row, head, block)."""
    key_value = np.arange(2)[:, None, None, None] * num_kv_heads
    heads = np.arange(num_kv_heads)[:, None]
    parts: Ints = blocks[None, :, None] * (2 * num_kv_heads) + key_value + heads  # [2, D, num_kv_heads, n]
    return parts.reshape(-1)


def _groups(context: ForwardContext, row: int) -> Ints:
    """First flat token and end [n, 2] of the row's images whose tokens see each other."""
    if context.images is None or context.images.groups is None:
        return np.zeros((0, 2), dtype=np.int64)
    groups = context.images.groups
    found: Ints = groups[groups[:, 0] == row, 1:]
    return found


def _decode_groups(
    first: Ints, ends: Ints, table: Ints, cache: AttentionCache, workspace: Workspace
) -> tuple[Decodes, ...]:
    """Decode row i sees keys first[i] .. ends[i] - 1. All rows in one group, or by powers of two of their number of
    blocks where one group would gather much for nothing."""
    size = cache.kv.shape[3]
    num_blocks = (ends - 1) // size - first // size + 1  # [D]
    if int(num_blocks.max()) * len(ends) <= GROUP_WASTE * int(num_blocks.sum()):
        return (_decode_group(None, first, ends, table, cache, workspace),)
    bucket = np.ceil(np.log2(num_blocks))
    groups = []
    for value in np.unique(bucket):
        rows = np.flatnonzero(bucket == value)
        groups.append(_decode_group(rows, first[rows], ends[rows], table[rows], cache, workspace))
    return tuple(groups)


def _decode_group(
    rows: Ints | None, first: Ints, ends: Ints, table: Ints, cache: AttentionCache, workspace: Workspace
) -> _DecodeGroup:
    """`table` [D, logical blocks] of the group's rows; rows: their flat tokens, None for 0 .. D - 1."""
    _, _, num_kv_heads, size, _ = cache.kv.shape
    device = cache.kv.device
    # 1. blocks, from the null block where a row has fewer
    first_block = first // size
    num_blocks = (ends - 1) // size - first_block + 1
    count, widest = len(ends), int(num_blocks.max())
    column = np.arange(widest)
    real = column < num_blocks[:, None]  # [D, widest]
    logical = np.minimum(first_block[:, None] + column, table.shape[1] - 1)
    blocks = np.where(real, table[np.arange(count)[:, None], logical], cache.null_block)
    # 2. keys that are gathered and not seen: all are masked, those in real blocks also zeroed
    width = widest * size
    position = first_block[:, None] * size + np.arange(width)  # [D, L]
    hidden = (position < first[:, None]) | (position >= ends[:, None])
    row, key = np.nonzero(hidden & np.repeat(real, size, axis=1))
    key_value = np.arange(2)[:, None, None] * count
    absent = ((key_value + row) * num_kv_heads + np.arange(num_kv_heads)[:, None]) * width + key
    bias = np.where(hidden, np.float32("-inf"), np.float32(0))
    return _DecodeGroup(
        tokens=None if rows is None else upload(rows, device),
        num_rows=count,
        parts=upload(_parts(blocks, num_kv_heads), device),
        absent=upload(absent.reshape(-1), device) if len(row) else None,
        bias=upload(bias, device).to(cache.kv.dtype)[:, None, None],
        workspace=workspace,
    )


def _plan_chunk(
    table: Ints,  # [num_logical_blocks]
    begin: int,
    num_computed: int,
    seq_len: int,
    sliding_window: int | None,
    like: torch.Tensor,
    groups: Ints,
) -> _Chunk:
    """A chunk's tokens num_computed .. seq_len - 1, flat tokens from `begin` on. groups [n, 2]: first flat token and
    end of those that see each other, all of them in this chunk."""
    _, _, num_kv_heads, block_size, _ = like.shape
    window = seq_len if sliding_window is None else sliding_window
    first = max(0, num_computed - window + 1)
    first_block = first // block_size
    blocks = table[first_block : (seq_len - 1) // block_size + 1].astype(np.int64)
    pieces = []
    offset = begin - num_computed
    for start in range(num_computed, seq_len, QUERIES_PER_PIECE):
        end = min(start + QUERIES_PER_PIECE, seq_len)
        together = [(low, high) for low, high in (groups - offset).tolist() if low < end and start < high]
        first_key = max(0, start - window + 1)
        end_key = max(end, *(high for _, high in together), end)
        bias = None
        if first_key < start or end - start > window or together:
            query = torch.arange(start, end, device=like.device)[:, None]
            key = torch.arange(first_key, end_key, device=like.device)
            visible = key <= query
            for low, high in together:
                visible |= (query >= low) & (query < high) & (key >= low) & (key < high)
            visible &= key > query - window
            bias = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
            bias.masked_fill_(~visible, float("-inf"))
        pieces.append(_Piece(start + offset, end + offset, first_key - first, end_key - first, bias))
    parts = upload(_parts(blocks[None], num_kv_heads), like.device)
    return _Chunk(parts, first - first_block * block_size, tuple(pieces))
