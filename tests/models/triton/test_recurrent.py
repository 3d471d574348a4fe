"""The recurrent operations by Triton's kernels give what plain torch gives, over mixed batches of odd lengths.

Slots that no row resumes hold NaN, and slots that nobody writes keep what they hold. Inputs are views into wider
tensors, as layers pass them.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from hybrid.models.context import DeferredStates, StateCache
from hybrid.models.ops.dispatch import Ops, RecurrentRun
from hybrid.models.ops.recurrent import TorchRecurrent
from hybrid.models.ops.torch_ops import TorchOps
from hybrid.models.ops.triton.ops import TritonOps
from hybrid.models.ops.triton.recurrent import TritonRecurrent
from hybrid.models.ops.triton.recurrent_tables import Decodes, RecurrentTables
from tests.models.forward import context_for
from tests.models.triton.batches import SLOTS, recurrent_rows

SIZES = (16, 32)  # of blocks
MIXES: dict[str, list[int]] = {
    "decodes": [1, 1, 1],
    "short chunks": [2, 16, 15],
    "long chunks": [33, 2, 65],
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


@pytest.mark.parametrize(
    ("mix", "channels", "kernel", "bias", "dtype"),
    [
        *((mix, 37, 4, True, torch.float32) for mix in MIXES),
        ("mixed", 300, 3, False, torch.bfloat16),
        ("short chunks", 5, 2, True, torch.float32),
    ],
)
def test_conv(mix: str, channels: int, kernel: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x = view(generator, dtype, device, tokens_of(mix), channels)
    weight = torch.randn(kernel, channels, generator=generator).to(device, dtype)
    added = torch.randn(channels, generator=generator).to(device, dtype) if bias else None
    compare(mix, lambda run, cache: run.conv(x, weight, added, cache), (kernel - 1, channels), (0,), dtype, device)


@pytest.mark.parametrize(
    ("mix", "groups", "shape", "dtype"),
    [
        *((mix, 2, (4, 10, 7), torch.float32) for mix in MIXES),
        ("mixed", 1, (4, 70, 16), torch.bfloat16),  # heads that share a program; two tiles of channels
        ("mixed", 1, (1, 5, 130), torch.float32),  # two tiles of states
        ("decodes", 1, (3, 70, 130), torch.bfloat16),
    ],
)
def test_scan(mix: str, groups: int, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
    heads, channels, size = shape
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    x = view(generator, dtype, device, tokens, heads, channels)
    b, c = (view(generator, dtype, device, tokens, groups, size) for _ in range(2))
    dt = view(generator, torch.float32, device, tokens, heads).abs()
    a = -torch.rand(heads, generator=generator).to(device) * 3
    compare(mix, lambda run, cache: run.scan(x, dt, a, b, c, cache), (3, 1), shape, dtype, device)


@pytest.mark.parametrize(
    ("mix", "size", "channels", "dtype"),
    [
        *((mix, 5, 37, torch.float32) for mix in MIXES),
        ("short chunks", 16, 140, torch.bfloat16),
        ("mixed", 1, 16, torch.float32),
    ],
)
def test_selective_scan(mix: str, size: int, channels: int, dtype: torch.dtype, device: torch.device) -> None:
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    x = view(generator, dtype, device, tokens, channels)
    b, c = (view(generator, dtype, device, tokens, size) for _ in range(2))
    dt = view(generator, torch.float32, device, tokens, channels).abs()
    a = -torch.rand(size, channels, generator=generator).to(device) * 3
    shape = (size, channels)
    compare(mix, lambda run, cache: run.selective_scan(x, dt, a, b, c, cache), (3, 1), shape, dtype, device)


@pytest.mark.parametrize("mix", ["short chunks", "mixed"])
def test_gated_scan(mix: str, device: torch.device) -> None:
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    x = view(generator, torch.float32, device, tokens, 37)
    log_decay = -(view(generator, torch.float32, device, tokens, 37).abs() ** 3)
    compare(mix, lambda run, cache: run.gated_scan(x, log_decay, cache), (3, 1), (37,), torch.float32, device)


@pytest.mark.parametrize(
    ("mix", "groups", "shape"),
    [
        *((mix, 1, (2, 5, 7)) for mix in MIXES),
        ("short chunks", 2, (2, 20, 70)),  # several tiles of values
    ],
)
def test_delta_rule(mix: str, groups: int, shape: tuple[int, int, int], device: torch.device) -> None:
    heads, keys, values = shape
    generator, tokens = torch.Generator().manual_seed(0), tokens_of(mix)
    q, k = (view(generator, torch.float32, device, tokens, groups, keys) for _ in range(2))
    k = k / k.norm(dim=-1, keepdim=True)
    v = view(generator, torch.float32, device, tokens, heads, values)
    g = -(view(generator, torch.float32, device, tokens, heads).abs() ** 4) / 4
    beta = torch.rand(tokens, heads, generator=generator).to(device) * 2
    compare(mix, lambda run, cache: run.delta_rule(q, k, v, g, beta, cache), (3, 1), shape, torch.float32, device)


def test_the_new_values_of_a_block_of_equal_keys(device: torch.device) -> None:
    """Where powers of the system are huge, though its inverse is not."""
    tokens = tokens_of("long chunks")
    generator = torch.Generator().manual_seed(0)
    k = torch.ones(tokens, 1, 4, device=device) / 2
    v = torch.randn(tokens, 1, 3, generator=generator).to(device)
    g, beta = torch.zeros(tokens, 1, device=device), torch.ones(tokens, 1, device=device)
    run = TritonRecurrent.of(replace(recurrent_rows([tokens], device), num_computed=np.array([0])))
    cache = StateCache(torch.zeros(SLOTS, 3, 1), torch.zeros(SLOTS, 1, 4, 3, device=device))
    # every key replaces what the one before has written
    torch.testing.assert_close(run.delta_rule(k, k, v, g, beta, cache), v, rtol=1e-5, atol=1e-5)


def test_deferred_rows(device: torch.device) -> None:
    """They leave their states alone until it is known how many of their tokens count; one token, some, all."""
    lens, channels = [1, 5, 4, 20], 8
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(lens), channels, generator=generator).to(device)
    maps = torch.randn(sum(lens), 2, 1, 3, generator=generator).to(device)
    weight = torch.randn(4, channels, generator=generator).to(device)
    begin = [torch.randn(4, *shape, generator=generator).to(device) for shape in ((3, channels), (2, 4, 3))]

    def states(ops: Ops) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        cache = StateCache(begin[0].clone(), begin[1].clone())
        deferred = DeferredStates(np.array([1, 2, 3]))
        context = context_for([[0] * 40] * 4, [3, 0, 6, 9], lens, (cache,))
        context = replace(context, token_ids=context.token_ids.to(device), deferred=deferred)
        run = ops.plan_recurrent(context, cache)
        out = run.conv(x, weight, None, cache)
        dt = out[:, :2].abs()
        run.scan(out.view(-1, 2, 4), dt, -torch.ones(2, device=device), maps[:, 0], maps[:, 1], cache)
        before = [cache.conv.clone(), cache.ssm.clone()]
        deferred.commit(np.array([3, 1, 20]))
        return before, [cache.conv, cache.ssm]

    (before, after), (_, expected) = states(TritonOps()), states(TorchOps())
    for kept, first, mine, wanted in zip(before, begin, after, expected):
        assert torch.equal(kept[1:], first[1:])
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


def test_rows_that_stand_for_nothing(device: torch.device) -> None:
    """A decode row without slots, which a batch of fixed size is filled up with, reads and writes no state."""
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)).to(device)
    padded = torch.tensor([[-1, -1, 0, 0]] * 2, dtype=torch.int32, device=device)
    tables = RecurrentTables(Decodes(2, padded), None, padded[:0])
    cache = StateCache(torch.full((3, 3, 5), float("nan"), device=device), torch.full((3, 5), float("nan")).to(device))
    run = TritonRecurrent(tables, None)
    torch.testing.assert_close(run.conv(x, torch.ones(4, 5, device=device), None, cache), x)
    torch.testing.assert_close(run.gated_scan(x, -x.abs(), cache), x)
    assert cache.conv.isnan().all() and cache.ssm.isnan().all()
