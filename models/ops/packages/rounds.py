"""Rounds of contests: random inputs as layers pass them, the kernels' call, and the reference: plain torch in float32.

Slots that no row starts from hold NaN.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from ...context import StateCache
from ..recurrent import TorchRecurrent
from ..recurrent_plan import RecurrentRows
from ..triton.recurrent_tables import RecurrentTables
from .contest import Kernel, Round
from .shapes import ConvShape, SsdShape

NOTHING = np.zeros(0, dtype=np.int64)
BETWEEN = 64  # elements between the tokens of an input


def random_rows(lens: Sequence[int], resumed: bool, device: torch.device) -> RecurrentRows:
    """Rows that all resume or all begin, in slots 0 .. len(lens) in no order; none leaves a snapshot."""
    count = len(lens)
    return RecurrentRows(
        lens=np.array(lens),
        num_computed=np.full(count, 10 if resumed else 0),
        slots=np.random.default_rng().permutation(count + 1)[:count],
        writes=np.ones(count, dtype=np.bool_),
        snapshot_rows=NOTHING,
        snapshot_lengths=NOTHING,
        snapshot_slots=NOTHING,
        device=device,
    )


def conv_round(shape: ConvShape, dtype: torch.dtype, rows: RecurrentRows) -> Round:
    """With a bias where rows resume, without one where they begin."""
    device, channels, tail = rows.device, shape.channels, shape.kernel - 1
    x = _tokens(rows, dtype, channels)
    weight, bias = (torch.randn(*size, channels, device=device).to(dtype) for size in ((shape.kernel,), ()))
    states = _states(rows, dtype, tail, channels)
    inputs = (x, weight, bias if rows.num_computed.any() else None)
    return _round(rows, tail, inputs, states, lambda run, *given: run.conv(*given[:-1], StateCache(given[-1], states)))


def ssd_round(shape: SsdShape, dtype: torch.dtype, rows: RecurrentRows) -> Round:
    """Step sizes and decays are float32, as are the results."""
    heads, channels, groups, size = shape.heads, shape.channels, shape.groups, shape.size
    x = _tokens(rows, dtype, heads, channels)
    b, c = (_tokens(rows, dtype, groups, size) for _ in range(2))
    dt = _tokens(rows, torch.float32, heads).abs()
    a = -3 * torch.rand(heads, device=rows.device)
    states = _states(rows, torch.float32, heads, channels, size)
    return _round(
        rows,
        1,
        (x, dt, a, b, c),
        states,
        lambda run, *given: run.scan(*given[:-1], StateCache(states, given[-1])),
        torch.float32,
    )


def _round(
    rows: RecurrentRows,
    tail: int,
    inputs: tuple[torch.Tensor | None, ...],
    states: torch.Tensor,
    reference: Callable[..., torch.Tensor],  # of a TorchRecurrent, the inputs and the states
    dtype: torch.dtype | None = None,  # of the results; None: of the first input
) -> Round:
    x = inputs[0]
    assert x is not None
    tables, kind = RecurrentTables.of(rows, plain=True), dtype or x.dtype

    def call(kernel: Kernel, into: torch.Tensor) -> torch.Tensor:
        return kernel(tables, *inputs, into, x.new_empty(x.shape, dtype=kind))

    def results(kernel: Kernel) -> Sequence[torch.Tensor]:
        after = states.clone()
        return call(kernel, after), after

    def expected() -> Sequence[torch.Tensor]:
        after = states.to(torch.float32, copy=True)
        wide: list[Any] = [None if values is None else values.float() for values in inputs]
        out = reference(TorchRecurrent.of(rows, tail), *wide, after)
        return out.to(kind), after.to(states.dtype)

    return Round(results, expected, lambda kernel: call(kernel, states))


def _tokens(rows: RecurrentRows, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """[T, *shape], a view of wider rows."""
    tokens, size = int(rows.lens.sum()), prod(shape)
    wide = torch.randn(tokens, size + BETWEEN, device=rows.device).to(dtype)
    return wide[:, :size].view(tokens, *shape)


def _states(rows: RecurrentRows, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """[slots, *shape]."""
    states = torch.full((len(rows.lens) + 1, *shape), float("nan"), device=rows.device, dtype=dtype)
    if rows.num_computed.any():
        states[rows.slots] = torch.randn(len(rows.lens), *shape, device=rows.device).to(dtype)
    return states
