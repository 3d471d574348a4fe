"""TritonAttention: paged attention over a mixed batch by Triton's kernels; full and sliding window are one code path.

Decode rows are chunks of one query. The plan cuts rows into query tiles, and tiles with many keys into splits where
whole ones would leave the device idle. Which keys a token sees is a range of positions, so that the kernels know
neither windows nor images whose tokens see each other. All sizes of grids are numbers of the host.
"""

from dataclasses import dataclass

import numpy as np
import torch
from triton import cdiv, next_power_of_2

from ...context import AttentionCache, BlockTables, ForwardContext, Ints
from ..workspace import Workspace
from . import attention_kernels as kernels
from .device import ALIGNMENT, num_programs, product_dtype, shared_memory, upload

LOG2_E = 1.4426950408889634
WRITE_ELEMENTS = 2048  # that one program writes
SPLITS_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a launch cuts its work."""

    block_m: int  # queries times heads of a key-value head; a power of two
    block_n: int  # keys
    min_split: int  # keys that a split has at least
    num_warps: int
    num_stages: int


CHUNK_BLOCKS = ((128, 64), (128, 32), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))  # block_m, block_n
BUFFERS = 2  # of keys and of values, that are loaded while others are multiplied


def _padded(head_size: int) -> int:
    """Of what products are made: a power of two, at least 16."""
    return max(16, int(next_power_of_2(head_size)))


def decode_tiling(group: int, head_size: int, itemsize: int) -> Tiling:
    """For rows of one query. group: heads per key-value head."""
    bytes_per_key = _padded(head_size) * itemsize
    block_n = max(16, min(128, 16384 // bytes_per_key))
    stages = 3 if bytes_per_key <= 512 else 2
    return Tiling(max(16, next_power_of_2(group)), block_n, 256, 4 if itemsize == 2 else 8, stages)


def chunk_tiling(group: int, head_size: int, itemsize: int, shared_memory: int) -> Tiling:
    """For rows of several queries: the largest tile whose operands fit shared memory (bytes) and whose sums fit
    registers. float32 is multiplied outside the tensor cores, with small tiles."""
    padded, least = _padded(head_size), next_power_of_2(group)
    most = (32768 if itemsize == 2 else 4096) // padded
    for block_m, block_n in CHUNK_BLOCKS:
        fits = (block_m + 2 * BUFFERS * block_n) * padded * itemsize < shared_memory
        if fits and block_m <= most:
            break
    block_m = max(block_m, least)
    many = itemsize == 4 or block_m == 128 or block_m * padded > 16384
    return Tiling(block_m, block_n, 1024, 8 if many else 4, 3)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The decode rows of a batch, or its chunks: consecutive tokens from `begin` on, cut into tiles."""

    tiles: torch.Tensor  # [tiles, 8], see `attention_kernels.attend`
    splits: torch.Tensor | None  # [num_tokens, 2], see `attention_kernels.combine`; None: no tile is split
    begin: int
    num_tokens: int
    queries: int  # of a tile, at most
    tiling: Tiling


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """The plan of one step for all layers with the same tables, window and heads; see `dispatch.AttentionRun`."""

    slots: torch.Tensor  # [T]
    table: torch.Tensor  # [rows, blocks]
    first: torch.Tensor  # [T] first position that each token sees
    ends: torch.Tensor  # [T] the one after the last
    tiles: tuple[Tiles, ...]
    sliding: bool
    workspace: Workspace

    @classmethod
    def plan(
        cls,
        context: ForwardContext,
        tables: BlockTables,
        sliding_window: int | None,
        cache: AttentionCache,
        num_heads: int,
        workspace: Workspace,
        tilings: tuple[Tiling, Tiling] | None = None,
    ) -> "TritonAttention":
        """Index arithmetic for the step; `cache` gives shape and dtype of the layers it is for.

        tilings: of decode rows and of chunks; None: what suits the sizes.
        """
        num_blocks, _, num_kv_heads, block_size, head_size = cache.kv.shape
        assert tables.block_size == block_size and num_blocks * block_size < 2**31
        device, group = cache.kv.device, num_heads // num_kv_heads
        if tilings is None:
            sizes = (group, head_size, cache.kv.element_size())
            tilings = (decode_tiling(*sizes), chunk_tiling(*sizes, shared_memory(device)))
        first, ends = _visible(context, sliding_window)
        arrays: list[Ints] = [tables.slot_mapping, tables.table, first, ends]
        cut = []
        parts = ((0, context.num_decodes), (context.num_decodes, context.num_rows))
        for (low, high), tiling in zip(parts, tilings):
            if low < high:
                queries = 1 if high == context.num_decodes else tiling.block_m // group
                whole = _tile(context.query_start_loc[low : high + 1], low, first, ends, queries)
                pieces, splits = _split(whole, queries, tiling, num_programs(device) // num_kv_heads)
                items = _entries(pieces, first, ends, tiling.block_n)
                arrays += [items] if splits is None else [items, splits]
                cut.append((low, high, queries, tiling, splits is not None))
        slots, table, low_ends, high_ends, *indices = upload(arrays, device)
        uploaded = iter(indices)
        tiles = tuple(
            Tiles(
                tiles=next(uploaded),
                splits=next(uploaded) if is_split else None,
                begin=int(context.query_start_loc[low]),
                num_tokens=int(context.query_start_loc[high] - context.query_start_loc[low]),
                queries=queries,
                tiling=tiling,
            )
            for low, high, queries, tiling, is_split in cut
        )
        return cls(slots, table, low_ends, high_ends, tiles, sliding_window is not None, workspace)

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
        assert query.stride()[1:] == (query.shape[2], 1)
        if key_value is not None:
            _write(key_value, kv, self.slots)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for part in self.tiles:
            self._attend(part, query, kv, out, scale, softcap, sinks)
        return out

    def _attend(
        self,
        part: Tiles,
        query: torch.Tensor,
        kv: torch.Tensor,
        out: torch.Tensor,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> None:
        _, num_heads, head_size = query.shape
        num_kv_heads, block_size = kv.shape[2:4]
        tiling, count = part.tiling, part.tiles.shape[0]
        group = num_heads // num_kv_heads
        queries = part.queries
        padded = _padded(head_size)
        sums, totals = out, out
        if part.splits is not None:
            places = count * queries * num_heads
            like = torch.empty(0, dtype=torch.float32, device=kv.device)
            begin = -(-places * head_size // ALIGNMENT) * ALIGNMENT
            scratch = self.workspace.take((begin + places * 2,), like)
            sums, totals = scratch[:begin], scratch[begin:]
        kernels.attend[(count, num_kv_heads)](
            query,
            kv,
            sums,
            totals,
            query if sinks is None else sinks,
            self.table,
            self.first,
            self.ends,
            part.tiles,
            query.stride(0),
            self.table.stride(0),
            kv.stride(0),
            scale * LOG2_E if softcap is None else scale / softcap,
            0.0 if softcap is None else softcap * LOG2_E,
            NUM_KV_HEADS=num_kv_heads,
            GROUP=group,
            HEAD=head_size,
            HEAD_PADDED=padded,
            BLOCK_SIZE=block_size,
            QUERIES=queries,
            BLOCK_M=tiling.block_m,
            BLOCK_N=tiling.block_n,
            WINDOW=self.sliding,
            SINKS=sinks is not None,
            SOFTCAP=softcap is not None,
            SPLIT=part.splits is not None,
            PRODUCT=product_dtype(query.dtype),
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
        if part.splits is not None:
            kernels.combine[(part.num_tokens, num_heads)](
                sums,
                totals,
                out,
                part.splits,
                part.begin,
                NUM_HEADS=num_heads,
                QUERIES=queries,
                HEAD=head_size,
                HEAD_PADDED=padded,
                SPLITS=SPLITS_AT_A_TIME,
            )


def _write(key_value: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """Mutates kv: the step's keys and values [T, 2, num_kv_heads, head_size] go where `slots` says."""
    num_kv_heads, block_size, head_size = kv.shape[2:]
    assert key_value.stride()[1:] == (num_kv_heads * head_size, head_size, 1)
    padded = next_power_of_2(head_size)
    parts = max(1, min(next_power_of_2(2 * num_kv_heads), WRITE_ELEMENTS // padded))
    kernels.write[(len(key_value), cdiv(2 * num_kv_heads, parts))](
        key_value,
        kv,
        slots,
        key_value.stride(0),
        kv.stride(0),
        NUM_PARTS=2 * num_kv_heads,
        HEAD=head_size,
        HEAD_PADDED=padded,
        BLOCK_SIZE=block_size,
        PARTS=parts,
    )


def _visible(context: ForwardContext, sliding_window: int | None) -> tuple[Ints, Ints]:
    """First position that each token of the batch sees, and the one after the last. [T] each; both grow in a row."""
    starts, lens = context.query_start_loc[:-1], context.query_lens
    position = np.arange(lens.sum()) + np.repeat(context.num_computed_tokens - starts, lens)
    ends = position + 1
    if context.images is not None and context.images.groups is not None:
        for _, low, high in context.images.groups.tolist():
            ends[low:high] = ends[high - 1]
    first = np.zeros_like(position) if sliding_window is None else np.maximum(position - sliding_window + 1, 0)
    return first, ends


def _tile(query_start_loc: Ints, row: int, first: Ints, ends: Ints, queries: int) -> Ints:
    """Tiles [n, 5] of at most `queries` tokens: row, first token, tokens, first key, end of keys.

    query_start_loc: of consecutive rows, the first of which is `row`.
    """
    per_row = -(-np.diff(query_start_loc) // queries)
    owner = np.repeat(np.arange(len(per_row)), per_row)
    inner = np.arange(len(owner)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    token = query_start_loc[owner] + inner * queries
    count = np.minimum(queries, query_start_loc[owner + 1] - token)
    return np.stack((row + owner, token, count, first[token], ends[token + count - 1]), axis=1)


def _split(tiles: Ints, queries: int, tiling: Tiling, programs: int) -> tuple[Ints, Ints | None]:
    """Tiles [n, 6], in the order in which to run, each with whether it is the first of its splits; and `splits` of
    `attention_kernels.combine` where some are split.

    queries: of a tile, at most; programs: that keep the device busy. Splits are as long as lets about so many run;
    tiles of several queries, whose parts take much memory, are left whole where there are enough of them.
    """
    _, token, count, begin, end = tiles.T
    keys = end - begin
    size = max(tiling.min_split, -(-int(keys.sum()) // max(programs, 1)))
    size = -(-size // tiling.block_n) * tiling.block_n
    if int(keys.max()) <= size or (len(tiles) >= programs and int(count.max()) > 1):
        longest_first = np.argsort(-keys, kind="stable")
        return np.insert(tiles, 5, 1, axis=1)[longest_first], None
    pieces = -(-keys // size)
    owner = np.repeat(np.arange(len(tiles)), pieces)
    start = np.cumsum(pieces) - pieces
    piece = np.arange(len(owner)) - start[owner]
    split = np.concatenate((tiles[owner], (piece == 0)[:, None]), axis=1)
    split[:, 3] += piece * size
    split[:, 4] = np.minimum(split[:, 3] + size, split[:, 4])
    tile = np.repeat(np.arange(len(tiles)), count)  # of each token
    place = start[tile] * queries + np.arange(len(tile)) - (token - token[0])[tile]
    return split, np.stack((place, pieces[tile]), axis=1)


def _entries(tiles: Ints, first: Ints, ends: Ints, block_n: int) -> Ints:
    """Tiles as `attention_kernels.attend` wants them: with the keys that all queries see, in whole BLOCK_Ns."""
    row, token, count, begin, end, leads = tiles.T
    low = begin + -(-np.maximum(first[token + count - 1] - begin, 0) // block_n) * block_n
    high = begin + (np.minimum(ends[token], end) - begin) // block_n * block_n
    none = low >= high
    full = (np.where(none, begin, low), np.where(none, begin, high))
    return np.stack((row, token, count, begin, *full, end, leads), axis=1)
