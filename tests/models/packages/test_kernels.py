"""Functions of packages behind our operations: where they can compute a batch they do, else our kernels; the results
and every state are those of plain torch either way. The functions are stand-ins, see `stand_ins`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.models.context import StateCache
from hybrid.models.ops.packages import conv, ssd
from hybrid.models.ops.recurrent import TorchRecurrent
from hybrid.models.ops.recurrent_plan import RecurrentRows
from hybrid.models.ops.triton.recurrent import TritonRecurrent
from hybrid.models.ops.triton.recurrent_kernels import RecurrentKernels
from tests.models.packages import stand_ins

CPU = torch.device("cpu")
SLOTS = 12
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass
class Called:
    """Names of the functions that were called."""

    names: list[str] = field(default_factory=list)

    def noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self.names.append(function.__name__)
            return function(*arguments, **named)

        return run

    def kernels(self) -> RecurrentKernels:
        return RecurrentKernels(
            conv.decodes(self.noting(stand_ins.causal_conv1d_update)),
            conv.chunks(self.noting(stand_ins.causal_conv1d_fn)),
            ssd.decodes(self.noting(stand_ins.selective_state_update)),
            ssd.chunks(self.noting(stand_ins.mamba_chunk_scan_combined)),
        )


def rows(lens: list[int], resumed: list[bool], snapshots: list[tuple[int, int]] | None = None) -> RecurrentRows:
    """snapshots: row and tokens of it."""
    order = np.random.default_rng(0).permutation(SLOTS)
    taken = np.array(snapshots or np.zeros((0, 2)), dtype=np.int64)
    return RecurrentRows(
        lens=np.array(lens),
        num_computed=np.where(resumed, 10, 0),
        slots=order[: len(lens)],
        writes=np.ones(len(lens), dtype=np.bool_),
        snapshot_rows=taken[:, 0],
        snapshot_lengths=taken[:, 1],
        snapshot_slots=order[len(lens) : len(lens) + len(taken)],
        device=CPU,
    )


YES, NO = True, False
STEP, SCAN = ["causal_conv1d_update", "selective_state_update"], ["causal_conv1d_fn", "mamba_chunk_scan_combined"]
# rows, and what is called of the packages' functions for convolutions and for scans
BATCHES = {
    "steps": (rows([1, 1, 1], [YES, YES, YES]), STEP),
    "a step that begins": (rows([1, 1, 1], [YES, NO, YES]), []),
    "a step with a snapshot": (rows([1, 1], [YES, YES], [(1, 1)]), []),
    "a chunk that is resumed": (rows([19], [YES]), SCAN),
    "a chunk that begins": (rows([19], [NO]), SCAN),
    "a chunk with snapshots": (rows([19], [YES], [(0, 2), (0, 19)]), SCAN[:1]),
    "chunks that begin": (rows([2, 19, 5], [NO, NO, NO]), SCAN),
    "chunks that begin and leave snapshots": (rows([3, 19], [NO, NO], [(1, 7)]), SCAN[:1]),
    "chunks of which one is resumed": (rows([2, 19, 5], [NO, YES, NO]), []),
    "steps and a chunk": (rows([1, 1, 18], [YES, YES, YES]), [STEP[0], SCAN[0], STEP[1], SCAN[1]]),
    "steps of which one begins, and chunks": (rows([1, 1, 5, 4], [NO, YES, NO, NO]), SCAN),
    "steps, and chunks of which one is resumed": (rows([1, 1, 5, 4], [YES, YES, NO, YES]), STEP),
    "a chunk that does not write": (replace(rows([6], [YES]), writes=np.array([False])), SCAN[:1]),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_results_and_states(batch: str, dtype: torch.dtype) -> None:
    batch_rows, expected_calls = BATCHES[batch]
    generator = torch.Generator().manual_seed(0)
    tokens, channels, heads, groups, size = int(batch_rows.lens.sum()), 40, 4, 2, 7

    def random(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(kind)

    def beside(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        """Rows lie apart, where the package's loads could not reach them."""
        count = int(np.prod(shape))
        return random(tokens, count + 6, kind=kind)[:, 3 : 3 + count].view(tokens, *shape)

    x, weight, bias = beside(channels), random(4, channels), random(channels)
    inputs, b, c = beside(heads, 10), beside(groups, size), beside(groups, size)
    dt, a = beside(heads, kind=torch.float32).abs(), -3 * torch.rand(heads, generator=generator)
    resumed = batch_rows.slots[batch_rows.num_computed > 0]
    states = [torch.full((SLOTS, *shape), float("nan")) for shape in ((3, channels), (heads, 10, size))]
    for held in states:
        held[resumed] = torch.randn(len(resumed), *held.shape[1:], generator=generator)
    called = Called()
    runs = TritonRecurrent.of(batch_rows, called.kernels()), TorchRecurrent.of(batch_rows, 3)
    found = []
    for run in runs:
        cache = StateCache(states[0].to(dtype, copy=True), states[1].clone())
        results = run.conv(x, weight, bias, cache), run.scan(inputs, dt, a, b, c, cache)
        found.append((*results, cache.conv, cache.ssm))
    assert called.names == expected_calls
    for mine, wanted in zip(*found):
        assert mine.dtype == wanted.dtype and mine.is_contiguous()
        most = float(wanted.float().nan_to_num().abs().max())
        torch.testing.assert_close(mine, wanted, rtol=0, atol=TOLERANCE[dtype] * most, equal_nan=True)
    assert not any(out.isnan().any() for out in found[0][:2])


def test_an_input_of_another_dtype_than_the_state_stays_with_ours() -> None:
    """The package takes no mixtures."""
    called, steps, chunk = Called(), rows([1, 1], [YES, YES]), rows([5], [YES])
    for batch in (steps, chunk):
        cache = StateCache(torch.randn(SLOTS, 3, 8).bfloat16(), torch.zeros(0))
        run = TritonRecurrent.of(batch, called.kernels())
        out = run.conv(torch.randn(int(batch.lens.sum()), 8), torch.randn(4, 8), None, cache)
        assert out.isfinite().all()
    assert called.names == []


def test_no_tables_are_made_for_nobody() -> None:
    assert TritonRecurrent.of(rows([1], [YES])).tables.plain is None
