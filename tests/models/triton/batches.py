"""Batches for attention: shuffled block tables, and NaN in whatever no token of a row wrote or a window has left; and
rows for recurrent layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hybrid.models.context import BlockTables, ForwardContext, Snapshots
from hybrid.models.ops.recurrent_plan import RecurrentRows

SLOTS = 24  # of recurrent states
NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Sizes:
    heads: int
    kv_heads: int
    head_size: int
    block: int


@dataclass(frozen=True)
class Batch:
    """counts[i] tokens of row i run, behind computed[i] earlier ones; rows of one token first."""

    context: ForwardContext
    kv: torch.Tensor
    query: torch.Tensor
    key_value: torch.Tensor

    @property
    def tables(self) -> BlockTables:
        assert self.context.full is not None
        return self.context.full


def make(
    sizes: Sizes, computed: list[int], counts: list[int], window: int | None, device: torch.device, dtype: torch.dtype
) -> Batch:
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    before, lens = np.array(computed, dtype=np.int64), np.array(counts, dtype=np.int64)
    block, width = sizes.block, max([*(before + lens), 1]) // sizes.block + 1
    table = rng.permutation(len(lens) * width).reshape(len(lens), width)
    starts = np.concatenate(([0], np.cumsum(lens)))
    owner = np.repeat(np.arange(len(lens)), lens)
    positions = np.arange(starts[-1]) + (before - starts[:-1])[owner]
    tables = BlockTables(table, table[owner, positions // block] * block + positions % block, block)
    kv = torch.full((table.size + 1, 2, sizes.kv_heads, block, sizes.head_size), float("nan"))
    kv[-1] = 0
    for row, length in enumerate(computed):
        for position in range(0 if window is None else max(0, length - window + 1), length):
            values = torch.randn(kv.shape[1:3] + kv.shape[4:], generator=generator)
            kv[table[row, position // block], :, :, position % block] = values
    # as layers pass them: queries, keys and values lie side by side
    heads = torch.randn(len(owner), sizes.heads + 2 * sizes.kv_heads, sizes.head_size, generator=generator)
    heads = heads.to(device, dtype)
    context = ForwardContext(
        token_ids=torch.zeros(len(owner), dtype=torch.int64, device=device),
        positions=torch.from_numpy(positions).to(device),
        query_start_loc=starts,
        num_computed_tokens=before,
        num_decodes=counts.count(1),
        state_slots=np.arange(len(lens)),
        full=tables,
        window=tables,
        snapshots=Snapshots(NOTHING, NOTHING, NOTHING),
        images=None,
        caches=(),
    )
    key_value = heads[:, sizes.heads :].view(len(owner), 2, sizes.kv_heads, sizes.head_size)
    return Batch(context, kv.to(device, dtype), heads[:, : sizes.heads], key_value)


def recurrent_rows(lens: Sequence[int], device: torch.device) -> RecurrentRows:
    """Rows of these lengths: every other one is resumed, the last one does not write; snapshots anywhere, also two at
    one place."""
    rng = np.random.default_rng(len(lens))
    order = rng.permutation(SLOTS)
    owner = np.append(rng.integers(0, len(lens), 6), [0, len(lens) - 1])
    lengths = np.append(rng.integers(1, np.array(lens)[owner[:6]] + 1), [1, lens[-1]])
    return RecurrentRows(
        lens=np.array(lens),
        num_computed=np.arange(len(lens)) % 2 * 10,
        slots=order[: len(lens)],
        writes=np.array([*[True] * (len(lens) - 1), lens[-1] == 1]),
        snapshot_rows=owner,
        snapshot_lengths=lengths,
        snapshot_slots=order[len(lens) : len(lens) + len(owner)],
        device=device,
    )
