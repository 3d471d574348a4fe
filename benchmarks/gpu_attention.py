"""Cases of paged attention: decodes, chunks and both, of the heads, windows and caps that models have."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hybrid.models.context import AttentionCache, BlockTables, DecodeContext, ForwardContext, Ints, Snapshots
from hybrid.models.ops.dispatch import AttentionRun
from hybrid.models.ops.torch_ops import TorchOps
from hybrid.models.ops.triton.ops import TritonOps

from .gpu_case import Case, Tensors, Work, written

NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """Row i: counts[i] tokens behind computed[i] earlier ones; rows of one token first."""

    name: str
    computed: tuple[int, ...]
    counts: tuple[int, ...]
    heads: tuple[int, int, int]  # heads, key-value heads, size
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    block: int = 16

    @property
    def size(self) -> str:
        rows = f"{len(self.counts)} rows, {sum(self.computed) + sum(self.counts)} keys"
        return f"{rows}, heads {'/'.join(map(str, self.heads))}"


SHORT = (
    Batch("decodes", (9, 40), (1, 1), (4, 2, 16), block=8),
    Batch("decodes, window", (9, 40), (1, 1), (4, 1, 20), window=13, block=8),
    Batch("one long decode", (599,), (1,), (2, 1, 16)),
    Batch("chunks", (0, 12), (17, 9), (4, 2, 16), block=8),
    Batch("mixed, sinks, cap", (30, 0, 9), (1, 5, 16), (6, 2, 16), window=11, softcap=3.0, sinks=True, block=8),
)
FULL = (
    Batch("decodes", (8191,) * 32, (1,) * 32, (32, 8, 128)),
    Batch("decodes, uneven", (32767, *range(100, 16100, 1000)), (1,) * 17, (32, 8, 128)),
    Batch("one long decode", (131071,), (1,), (32, 8, 128)),
    Batch("decodes, window", (8191,) * 64, (1,) * 64, (8, 4, 256), window=1024),
    Batch("decodes, sinks", (4095,) * 64, (1,) * 64, (64, 8, 64), sinks=True),
    Batch("decodes, heads of 512", (8191,) * 32, (1,) * 32, (16, 2, 512)),
    Batch("chunks", (0,) * 4, (4096,) * 4, (32, 8, 128)),
    Batch("chunk behind others", (8192,), (4096,), (32, 8, 128)),
    Batch("chunks, window", (0,) * 4, (4096,) * 4, (8, 4, 256), window=1024),
    Batch("chunks, sinks", (0,) * 2, (4096,) * 2, (64, 8, 64), window=128, sinks=True),
    Batch("chunks, cap", (0,) * 2, (4096,) * 2, (16, 8, 256), softcap=50.0),
    Batch("chunks, heads of 512", (0,), (2048,), (16, 2, 512)),
    Batch("mixed", (4095,) * 31 + (1000,), (1,) * 31 + (2048,), (32, 8, 128)),
)


def cases(device: torch.device, dtype: torch.dtype, short: bool) -> list[Case]:
    """Of all batches; those that only decode also as a graph has them, cut on the device."""
    batches = SHORT if short else FULL
    both = [(batch, False) for batch in batches] + [(batch, True) for batch in batches if set(batch.counts) == {1}]
    return [
        Case(
            f"attention{' in a graph' if in_graph else ''}: {batch.name}",
            batch.size,
            dtype,
            not short,
            partial(_work, batch, device, dtype, in_graph),
        )
        for batch, in_graph in both
    ]


def _work(batch: Batch, device: torch.device, dtype: torch.dtype, in_graph: bool) -> Work:
    heads, kv_heads, size = batch.heads
    context, tables = _context(batch, device)
    kv = _keys_and_values(batch, tables.table, device, dtype)
    tokens = len(context.positions)
    qkv = torch.randn(tokens, heads + 2 * kv_heads, size, device=device).to(dtype)  # side by side, as layers pass them
    sinks = torch.randn(heads, device=device) if batch.sinks else None
    scale = size**-0.5

    def planned(ops: TritonOps | TorchOps, cache: AttentionCache) -> AttentionRun:
        if in_graph and isinstance(ops, TritonOps):
            decodes = _on_device(context, tables, device)
            assert decodes.full is not None
            return ops.plan_decode_attention(decodes, decodes.full, batch.window, cache, heads)
        return ops.plan_attention(context, tables, batch.window, cache, heads)

    def run(ops: TritonOps | TorchOps, dtype: torch.dtype) -> Tensors:
        cache = AttentionCache(kv.to(dtype, copy=True))
        whole = qkv.to(dtype)
        query, key_value = whole[:, :heads], whole[:, heads:].view(tokens, 2, kv_heads, size)
        return planned(ops, cache)(query, key_value, cache, scale, batch.softcap, sinks), written(cache.kv)

    timed = AttentionCache(kv)
    plan = planned(TritonOps(), timed)
    query, key_value = qkv[:, :heads], qkv[:, heads:].view(tokens, 2, kv_heads, size)
    computed, counts = np.array(batch.computed), np.array(batch.counts)
    seen = context.positions.cpu().numpy() + 1
    reach = np.inf if batch.window is None else batch.window
    pairs = float(np.minimum(seen, reach).sum())
    keys = float((computed + counts - np.maximum(computed - reach + 1, 0)).sum())  # that some token of a row sees
    return Work(
        kernel=lambda: run(TritonOps(), dtype),
        reference=lambda: run(TorchOps(), torch.float32),
        again=lambda: plan(query, key_value, timed, scale, batch.softcap, sinks),
        # keys and values are read, new ones come and are written; queries are read, results written
        bytes=(2 * kv_heads * (keys + 2 * tokens) + 2 * heads * tokens) * size * dtype.itemsize,
        operations=4 * heads * size * pairs,
    )


def _context(batch: Batch, device: torch.device) -> tuple[ForwardContext, BlockTables]:
    """Blocks lie in no order."""
    computed, counts = (np.array(values, dtype=np.int64) for values in (batch.computed, batch.counts))
    width = int((computed + counts).max()) // batch.block + 1
    table = np.random.default_rng().permutation(len(counts) * width).reshape(len(counts), width)
    starts = np.concatenate(([0], np.cumsum(counts)))
    owner = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(starts[-1]) + (computed - starts[:-1])[owner]
    slots = table[owner, positions // batch.block] * batch.block + positions % batch.block
    tables = BlockTables(table, slots, batch.block)
    context = ForwardContext(
        token_ids=torch.zeros(len(owner), dtype=torch.int64, device=device),
        positions=torch.from_numpy(positions).to(device),
        query_start_loc=starts,
        num_computed_tokens=computed,
        num_decodes=batch.counts.count(1),
        state_slots=np.arange(len(counts)),
        full=tables,
        window=tables,
        snapshots=Snapshots(NOTHING, NOTHING, NOTHING),
        images=None,
        caches=(),
    )
    return context, tables


def _on_device(context: ForwardContext, tables: BlockTables, device: torch.device) -> DecodeContext:
    """The same batch of decodes, rows in the order of the tables' lines; the last line is nobody's."""
    rows = len(context.positions)
    null = np.full((1, tables.table.shape[1]), tables.table.size)
    return DecodeContext(
        token_ids=context.token_ids,
        positions=context.positions,
        rows=torch.arange(rows, device=device),
        full=torch.from_numpy(np.concatenate((tables.table, null))).int().to(device),
        window=None,
        state_slots=torch.zeros(rows + 1, dtype=torch.int64, device=device),
        caches=(),
    )


def _keys_and_values(batch: Batch, table: Ints, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """NaN wherever no token of a row wrote, and what a window has left; the last block is zeros."""
    _, kv_heads, size = batch.heads
    kv = torch.full((table.size + 1, 2, kv_heads, batch.block, size), float("nan"), device=device, dtype=dtype)
    kv[-1] = 0
    for row, length in enumerate(batch.computed):
        positions = np.arange(0 if batch.window is None else max(0, length - batch.window + 1), length)
        blocks = torch.from_numpy(table[row, positions // batch.block]).to(device)
        offsets = torch.from_numpy(positions % batch.block).to(device)
        kv[blocks, :, :, offsets] = torch.randn(len(positions), 2, kv_heads, size, device=device).to(dtype)
    return kv
