"""The recurrent operations by Triton's kernels give what plain torch gives, over mixed batches of odd lengths.

Slots that no row resumes hold NaN, and slots that nobody writes keep what they hold. Inputs are views into wider
tensors, as layers pass them.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hybrid.models.context import StateCache
from hybrid.models.ops.dispatch import RecurrentRun
from hybrid.models.ops.recurrent import TorchRecurrent
from hybrid.models.ops.triton.recurrent import TritonRecurrent
from hybrid.models.ops.triton.recurrent_tables import RecurrentTables
from tests.models.triton.batches import SLOTS, recurrent_rows

SIZES = (16, 32)  # of blocks
MIXES: dict[str, list[int]] = {
    "decodes": [1, 1, 1],
    "short chunks": [2, 16, 15],
    "long chunks": [33, 2, 70],
    "mixed": [1, 1, 17, 3, 64],
}
Call = Callable[[RecurrentRun, StateCache], torch.Tensor]


def view(generator: torch.Generator, dtype: torch.dtype, device: torch.device, *shape: int) -> torch.Tensor:
    """A random tensor whose rows lie apart; what is between them is NaN."""
    size = int(np.prod(shape[1:]))
    wide = torch.full((shape[0], size + 16), float("nan"))
    wide[:, 8 : 8 + size] = torch.randn(shape[0], size, generator=generator)
    return wide.to(device, dtype)[:, 8 : 8 + size].view(shape)


def compare(
    mix: str, call: Call, conv: tuple[int, ...], ssm: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """Results and every slot, of both implementations."""
    rows = recurrent_rows(MIXES[mix], device)
    generator = torch.Generator().manual_seed(1)
    resumed = rows.slots[rows.num_computed > 0]
    states = []
    for shape in (conv, ssm):
        whole = torch.full((SLOTS, *shape), float("nan"))
        whole[resumed] = torch.randn(len(resumed), *shape, generator=generator)
        states.append(whole.to(device))
    tail = conv[0] if conv else 3
    expected_cache, cache = (StateCache(states[0].to(dtype, copy=True), states[1].clone()) for _ in range(2))
    expected = call(TorchRecurrent.of(rows, tail), expected_cache)
    actual = call(TritonRecurrent(RecurrentTables.of(rows, SIZES), None), cache)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for mine, wanted in zip((actual, cache.conv, cache.ssm), (expected, expected_cache.conv, expected_cache.ssm)):
        assert mine.dtype == wanted.dtype
        scale = max([1.0, *wanted.float().nan_to_num().abs().flatten().tolist()])
        torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    assert torch.isfinite(actual).all()
    written = np.concatenate((rows.slots[rows.writes], rows.snapshot_slots))
    untouched = np.setdiff1d(np.arange(SLOTS), written)
    assert torch.equal(cache.ssm[untouched].nan_to_num(7), states[1][untouched].nan_to_num(7))


def tokens_of(mix: str) -> int:
    return sum(MIXES[mix])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "kernel", "bias"), [(37, 4, True), (300, 3, False), (5, 2, True)])
@pytest.mark.parametrize("mix", MIXES)
def test_conv(mix: str, channels: int, kernel: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x = view(generator, dtype, device, tokens_of(mix), channels)
    weight = torch.randn(kernel, channels, generator=generator).to(device, dtype)
    added = torch.randn(channels, generator=generator).to(device, dtype) if bias else None
    compare(mix, lambda run, cache: run.conv(x, weight, added, cache), (kernel - 1, channels), (0,), dtype, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "groups", "channels", "size"), [(6, 3, 10, 7), (4, 1, 16, 40), (8, 1, 70, 16), (1, 1, 5, 130)]
)
@pytest.mark.parametrize("mix", MIXES)
def test_scan(
    mix: str, heads: int, groups: int, channels: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    x = view(generator, dtype, device, tokens, heads, channels)
    b, c = (view(generator, dtype, device, tokens, groups, size) for _ in range(2))
    dt = view(generator, torch.float32, device, tokens, heads).abs()
    a = -torch.rand(heads, generator=generator).to(device) * 3
    shape = (heads, channels, size)
    compare(mix, lambda run, cache: run.scan(x, dt, a, b, c, cache), (3, 1), shape, dtype, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("channels", "size"), [(37, 5), (140, 16), (16, 1)])
@pytest.mark.parametrize("mix", MIXES)
def test_selective_scan(mix: str, channels: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    x = view(generator, dtype, device, tokens, channels)
    b, c = (view(generator, dtype, device, tokens, size) for _ in range(2))
    dt = view(generator, torch.float32, device, tokens, channels).abs()
    a = -torch.rand(size, channels, generator=generator).to(device) * 3
    shape = (size, channels)
    compare(mix, lambda run, cache: run.selective_scan(x, dt, a, b, c, cache), (3, 1), shape, dtype, device)


@pytest.mark.parametrize("mix", MIXES)
def test_gated_scan(mix: str, device: torch.device) -> None:
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    x = view(generator, torch.float32, device, tokens, 37)
    log_decay = -(view(generator, torch.float32, device, tokens, 37).abs() ** 3)
    compare(mix, lambda run, cache: run.gated_scan(x, log_decay, cache), (3, 1), (37,), torch.float32, device)


@pytest.mark.parametrize(("groups", "heads", "keys", "values"), [(3, 6, 5, 7), (1, 3, 16, 33), (2, 2, 20, 70)])
@pytest.mark.parametrize("mix", MIXES)
def test_delta_rule(mix: str, groups: int, heads: int, keys: int, values: int, device: torch.device) -> None:
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    q, k = (view(generator, torch.float32, device, tokens, groups, keys) for _ in range(2))
    k = k / k.norm(dim=-1, keepdim=True)
    v = view(generator, torch.float32, device, tokens, heads, values)
    g = -(view(generator, torch.float32, device, tokens, heads).abs() ** 4) / 4
    beta = torch.rand(tokens, heads, generator=generator).to(device) * 2
    shape = (heads, keys, values)
    compare(mix, lambda run, cache: run.delta_rule(q, k, v, g, beta, cache), (3, 1), shape, torch.float32, device)
