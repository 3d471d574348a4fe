"""Low-rank changes by Triton's kernels are those of plain torch, and concern no other token, column or unit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.models.lora_site import LoraSite
from hybrid.models.ops.decode_lora import DecodeLora, Lora
from hybrid.models.ops.lora import LoraBatch
from hybrid.models.ops.lora_tables import LoraTables
from hybrid.models.ops.triton import lora

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}
ADAPTERS = ((), (3,), (7, 1), (2, 9, 4), (5,))  # rank units; the last one changes nothing at the site
RANKS = (0, 5, 16, 20)
NUM_UNITS = 12


def site(inputs: int, outputs: int, table: bool, dtype: torch.dtype, device: torch.device) -> LoraSite:
    """With every adapter but the last; NaN in all other units."""
    made = LoraSite("site", inputs, outputs, offset=3, table=table)
    made.allocate(NUM_UNITS, dtype, device)
    made.a.fill_(float("nan"))
    made.b.fill_(float("nan"))
    generator = torch.Generator().manual_seed(inputs)
    for units, rank in zip(ADAPTERS[1:], RANKS[1:]):
        a, b = torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)
        made.write(torch.tensor(units, device=device), a, b / inputs**0.5)
    return made


def batch(adapters: Sequence[int]) -> LoraBatch:
    """adapters[t] is the adapter of token t."""
    table = np.full((len(ADAPTERS), max(map(len, ADAPTERS))), -1)
    for row, units in enumerate(ADAPTERS):
        table[row, : len(units)] = units
    return LoraBatch(table[np.array(adapters, dtype=np.int64)])


BATCHES = {
    "one token": [2],
    "decodes": [1, 0, 3, 4, 1, 0, 2],
    "a block": [1] * 16,
    "a block and one": [0, 3] + [2] * 17,
    "a block less one": [2] * 15 + [4] * 15,
    "chunks": [3] * 65 + [1] * 64 + [0] * 9 + [4] * 3,
    "all nothing": [4, 0, 4],
}


def outcomes(
    monkeypatch: pytest.MonkeyPatch, changed: LoraSite, adapters: Sequence[int], x: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    results = []
    for name in ("triton", "torch"):
        monkeypatch.setenv("HYBRID_OPS", name)
        result = out.clone()
        of_tokens = batch(adapters)
        (of_tokens.add_rows if changed.table else of_tokens.add)(changed, x, result)
        results.append(result)
    return results[0], results[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 1), (300, 140)])
@pytest.mark.parametrize("adapters", BATCHES.values(), ids=BATCHES)
def test_projections(
    adapters: Sequence[int],
    inputs: int,
    outputs: int,
    dtype: torch.dtype,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = site(inputs, outputs, False, dtype, device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(adapters), inputs + 2, generator=generator).to(device, dtype)[:, 2:]
    out = torch.randn(len(adapters), outputs + 5, generator=generator).to(device, dtype)
    ours, theirs = outcomes(monkeypatch, changed, adapters, x, out)
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    alone = np.isin(adapters, (0, 4))
    assert torch.equal(ours[alone], out[alone])
    for others in (slice(3), slice(3 + outputs, None)):
        assert torch.equal(ours[:, others], out[:, others])
    moved = ours[~alone, 3 : 3 + outputs] != out[~alone, 3 : 3 + outputs]
    assert moved.any(dim=1).float().mean() > 0.9 or alone.all()


def test_what_is_wider_than_the_adapters(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router computes in float32."""
    changed = site(70, 20, False, torch.bfloat16, device)
    x, out = torch.randn(7, 70, device=device), torch.zeros(7, 23, device=device)
    ours, theirs = outcomes(monkeypatch, changed, BATCHES["decodes"], x, out)
    assert float(ours.abs().max()) > 0.5
    torch.testing.assert_close(ours, theirs, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adapters", BATCHES.values(), ids=BATCHES)
def test_tables(
    adapters: Sequence[int], dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = site(11, 140, True, dtype, device)
    changed.offset = 0
    ids = torch.arange(len(adapters), device=device) * 7 % 11
    out = torch.randn(len(adapters), 140, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    ours, theirs = outcomes(monkeypatch, changed, adapters, ids, out)
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    alone = np.isin(adapters, (0, 4))
    assert torch.equal(ours[alone], out[alone])
    assert alone.all() or not torch.equal(ours, out)


def test_an_adapter_that_is_cleared_changes_nothing(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = site(8, 4, False, torch.float32, device)
    changed.clear(torch.tensor(ADAPTERS[1], device=device))
    x, out = torch.ones(3, 8, device=device), torch.zeros(3, 7, device=device)
    ours, theirs = outcomes(monkeypatch, changed, [1, 2, 1], x, out)
    torch.testing.assert_close(ours, theirs)
    assert not ours[::2].any() and ours[1].any()


DECODES = ([2], [1, 0, 3, 4, 1, 0, 2], [3] * 20, [0, 3] + [2] * 17, [4, 0], [0, 1])  # each with some adapter


@pytest.mark.parametrize("table", [False, True])
def test_decode_steps_of_one_size(table: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch after the other in the same tables, behind them rows of nobody's, with NaN as inputs: nothing but the
    rows with adapters changes, and every launch is the same."""
    size, most = 20, max(map(len, ADAPTERS))
    changed = site(31, 40, table, torch.float32, device)
    changed.offset = 0 if table else 3
    steps, grids = DecodeLora(size, NUM_UNITS, most, device), list[Any]()
    run: Any = type(lora.lora_expand).run

    def watched(self: Any, *args: Any, grid: Any, **options: Any) -> None:
        grids.append((self.fn.__name__, grid))
        run(self, *args, grid=grid, **options)

    monkeypatch.setattr(type(lora.lora_expand), "run", watched)
    generator = torch.Generator().manual_seed(0)
    for adapters in ([], *DECODES):
        count = len(adapters)
        x = torch.full((size, 31), float("nan"), device=device)
        x[:count] = torch.randn(count, 31, generator=generator).to(device)
        ids = torch.arange(size, device=device) * 7 % 31
        out = torch.randn(size, 45, generator=generator).to(device)
        ours, theirs, read = out.clone(), out.clone(), out.clone()
        if adapters:
            steps.fill(batch(adapters))
        wanted: tuple[tuple[Lora, torch.Tensor, str], ...]
        wanted = (steps, ours, "triton"), (batch(adapters), theirs, "torch"), (steps, read, "torch")
        for changes, result, ops in wanted:
            monkeypatch.setenv("HYBRID_OPS", ops)
            rows = slice(None if changes is steps else count)
            if table:
                changes.add_rows(changed, ids[rows], result[rows, 3:43])
            else:
                changes.add(changed, x[rows], result[rows])
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(read, theirs, rtol=1e-5, atol=1e-5)
        alone = torch.tensor([*np.isin(adapters, (0, 4)), *[True] * (size - count)], device=device)
        assert torch.equal(ours[alone], out[alone])
        assert bool((ours != out).any()) != bool(alone.all())
    each = 1 if table else 2
    assert len(grids) == each * (1 + len(DECODES)) and len(set(grids)) == each


@pytest.mark.parametrize("seed", range(20))
def test_any_step_fits_the_largest_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_rows, num_units, most = rng.integers(1, 80), rng.integers(1, 12), 3
    adapters = np.split(rng.permutation(num_units), np.sort(rng.integers(0, num_units + 1, 5)))
    held = [units[:most] for units in adapters if len(units)]
    owner = rng.integers(-1, len(held), num_rows)
    groups = [(np.flatnonzero(owner == i), units) for i, units in enumerate(held) if (owner == i).any()]
    tables = LoraTables.largest(int(num_rows), int(num_units), most)
    blocks, tokens, units, of_token = tables.views(tables.filled(groups) if groups else np.full(tables.size, -1))
    found = {}
    for adapter, first, count in blocks[blocks[:, 0] >= 0]:
        assert 0 < count <= tables.block_size
        for token in tokens[first : first + count].tolist():
            assert token not in found and of_token[token] == adapter
            found[token] = units[adapter][units[adapter] >= 0].tolist()
    assert found == {token: held[i].tolist() for token, i in enumerate(owner.tolist()) if i >= 0}
    assert (of_token[owner < 0] == -1).all()
