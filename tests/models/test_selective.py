"""The scan of Mamba-1 and RG-LRU against the recurrence itself, token by token in float64."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hybrid.models.context import StateCache
from hybrid.models.ops.recurrent import TorchRecurrent
from hybrid.models.ops.recurrent_plan import RecurrentRows

CHANNELS, STATE, SLOTS = 11, 5, 40
TAIL = 3
MIXES: dict[str, list[int]] = {
    "decodes": [1, 1, 1],
    "one chunk": [70],
    "short chunks": [2, 16, 5],
    "long chunks": [65, 2, 64, 200, 63, 129],
    "mixed": [1, 1, 130, 17, 3, 64],
}


def batch(lens: Sequence[int], snapshots: Sequence[tuple[int, int]], rng: np.random.Generator) -> RecurrentRows:
    """Rows of these lengths; every other one is resumed. snapshots: (row, length)."""
    order = rng.permutation(SLOTS)
    return RecurrentRows(
        lens=np.array(lens),
        num_computed=np.arange(len(lens)) % 2 * 10,
        slots=order[: len(lens)],
        writes=np.ones(len(lens), dtype=np.bool_),
        snapshot_rows=np.array([row for row, _ in snapshots], dtype=np.int64),
        snapshot_lengths=np.array([length for _, length in snapshots], dtype=np.int64),
        snapshot_slots=order[len(lens) : len(lens) + len(snapshots)],
        device=torch.device("cpu"),
    )


def snapshots_of(lens: Sequence[int], rng: np.random.Generator) -> list[tuple[int, int]]:
    return [(int(row), int(rng.integers(1, lens[row] + 1))) for row in rng.integers(0, len(lens), 12)]


def states_for(rows: RecurrentRows, shape: tuple[int, ...]) -> torch.Tensor:
    """NaN but for the slots of resumed rows."""
    states = torch.full((SLOTS, *shape), float("nan"))
    for slot in rows.slots[rows.num_computed > 0]:
        states[slot] = torch.randn(shape)
    return states


def check(
    rows: RecurrentRows, decay: torch.Tensor, added: torch.Tensor, before: torch.Tensor, after: torch.Tensor
) -> torch.Tensor:
    """All states [T, ..] of h_t = decay_t h_{t-1} + added_t; asserts that those in `after` are where they belong."""
    begin, out = 0, []
    wanted: dict[int, torch.Tensor] = {}
    for row, length in enumerate(rows.lens.tolist()):
        slot = int(rows.slots[row])
        h = torch.zeros_like(added[0]) if rows.num_computed[row] == 0 else before[slot].double()
        for t in range(length):
            h = decay[begin + t] * h + added[begin + t]
            out.append(h)
            for index in np.flatnonzero((rows.snapshot_rows == row) & (rows.snapshot_lengths == t + 1)):
                wanted[int(rows.snapshot_slots[index])] = h
        wanted[slot] = h
        begin += length
    for slot in range(SLOTS):
        expected = wanted[slot].float() if slot in wanted else before[slot]
        torch.testing.assert_close(after[slot], expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return torch.stack(out)


@pytest.mark.parametrize("mix", MIXES)
def test_selective_scan(mix: str) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    rows = batch(MIXES[mix], snapshots_of(MIXES[mix], rng), rng)
    tokens = int(rows.lens.sum())
    x, dt = torch.randn(tokens, CHANNELS), torch.rand(tokens, CHANNELS) * 2
    b, c = torch.randn(tokens, STATE), torch.randn(tokens, STATE)
    a = -torch.rand(STATE, CHANNELS) * 3
    before = states_for(rows, (STATE, CHANNELS))
    cache = StateCache(torch.zeros(SLOTS, TAIL, CHANNELS), before.clone())
    y = TorchRecurrent.of(rows, TAIL).selective_scan(x, dt, a, b, c, cache)
    decay = torch.exp(dt.double()[:, None] * a)
    added = b.double()[:, :, None] * (dt * x).double()[:, None]
    h = check(rows, decay, added, before, cache.ssm)
    torch.testing.assert_close(y, torch.einsum("tn,tnw->tw", c.double(), h).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mix", MIXES)
def test_gated_scan(mix: str) -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    rows = batch(MIXES[mix], snapshots_of(MIXES[mix], rng), rng)
    tokens = int(rows.lens.sum())
    x, log_decay = torch.randn(tokens, CHANNELS), -(torch.rand(tokens, CHANNELS) ** 3) * 8
    before = states_for(rows, (CHANNELS,))
    cache = StateCache(torch.zeros(SLOTS, TAIL, CHANNELS), before.clone())
    y = TorchRecurrent.of(rows, TAIL).gated_scan(x, log_decay, cache)
    h = check(rows, log_decay.double().exp(), x.double(), before, cache.ssm)
    torch.testing.assert_close(y, h.float(), rtol=1e-4, atol=1e-5)


def test_rows_that_do_not_write_leave_their_slots_as_they_were() -> None:
    rng = np.random.default_rng(2)
    rows = batch([20, 90], [(1, 33)], rng)
    kept = RecurrentRows(**{name: getattr(rows, name) for name in RecurrentRows.__slots__} | {"writes": rows.lens < 0})
    x, log_decay = torch.randn(110, CHANNELS), -torch.rand(110, CHANNELS)
    before = torch.randn(SLOTS, CHANNELS)
    written = []
    for each in (rows, kept):
        cache = StateCache(torch.zeros(SLOTS, TAIL, CHANNELS), before.clone())
        TorchRecurrent.of(each, TAIL).gated_scan(x, log_decay, cache)
        written.append(cache.ssm)
    assert torch.equal(written[0][rows.snapshot_slots], written[1][rows.snapshot_slots])
    assert torch.equal(before[rows.slots], written[1][rows.slots])
