"""The compiled kernels for a CPU give what plain torch gives; the engine's models run on both."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from hybrid.models.context import AttentionCache, BlockTables, ForwardContext, Snapshots, StateCache
from hybrid.models.ops import cpu, elementwise
from hybrid.models.ops.dispatch import Ops
from hybrid.models.ops.torch_ops import TorchOps
from tests.models.forward import chunked_logits
from tests.runner.plans import native_model, random_reference, reference_logits, small_config

NOTHING = np.zeros(0, dtype=np.int64)


def decode_context(seq_lens: list[int], slots: list[int], block_size: int, snapshots: Snapshots) -> ForwardContext:
    """Decode rows only; row i has blocks i * 40 .. and position seq_lens[i] - 1 is its token."""
    lens = np.array(seq_lens)
    rows = np.arange(len(lens))
    table = rows[:, None] * 40 + np.arange(40)
    tables = BlockTables(
        table, table[rows, (lens - 1) // block_size] * block_size + (lens - 1) % block_size, block_size
    )
    return ForwardContext(
        token_ids=torch.zeros(len(lens), dtype=torch.int64),
        positions=torch.from_numpy(lens - 1),
        query_start_loc=np.arange(len(lens) + 1),
        num_computed_tokens=lens - 1,
        num_decodes=len(lens),
        state_slots=np.array(slots),
        full=tables,
        window=tables,
        snapshots=snapshots,
        images=None,
        caches=(),
    )


@pytest.mark.parametrize("window", [None, 1, 5, 13, 300])
@pytest.mark.parametrize(("heads", "kv_heads", "size", "block"), [(6, 3, 10, 4), (5, 1, 33, 7), (4, 4, 64, 16)])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_of_decode_rows(
    window: int | None, heads: int, kv_heads: int, size: int, block: int, softcap: float | None, sinks: bool
) -> None:
    torch.manual_seed(0)
    seq_lens = [1, block - 1, block, block + 1, 97, 12]
    context = decode_context(seq_lens, [0] * 6, block, Snapshots(NOTHING, NOTHING, NOTHING))
    kv = torch.full((6 * 40 + 1, 2, kv_heads, block, size), float("nan"))
    kv[-1] = 0
    for row, length in enumerate(seq_lens):
        for position in range(length):
            kv[row * 40 + position // block, :, :, position % block] = torch.randn(2, kv_heads, size)
    query, key_value = torch.randn(6, heads, size), torch.randn(6, 2, kv_heads, size)
    sink = torch.randn(heads) if sinks else None
    results = []
    for ops in (TorchOps(), cpu.CpuOps()):
        cache = AttentionCache(kv.clone())
        assert context.full is not None
        run = ops.plan_attention(context, context.full, window, cache, heads)
        results.append(run(query, key_value, cache, 0.3, softcap, sink))
    assert torch.isfinite(results[1]).all()
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "groups", "channels", "size"), [(6, 3, 5, 7), (4, 1, 8, 16), (1, 1, 1, 1)])
def test_a_step_of_mamba2(heads: int, groups: int, channels: int, size: int) -> None:
    torch.manual_seed(0)
    snapshots = Snapshots(np.array([2, 0]), np.array([1, 1]), np.array([7, 8]))
    context = decode_context([5, 1, 9], [4, 0, 2], 4, snapshots)
    ssm = torch.randn(9, heads, channels, size)
    ssm[0] = float("nan")  # a former owner's; row 1 starts from nothing
    x, dt, a = torch.randn(3, heads, channels), torch.rand(3, heads), -torch.rand(heads)
    b, c = torch.randn(3, groups, size), torch.randn(3, groups, size)
    results = []
    for ops in (TorchOps(), cpu.CpuOps()):
        cache = StateCache(torch.zeros(9, 3, 4), ssm.clone())
        results.append((_run(ops, context, cache, x, dt, a, b, c), cache.ssm))
    for ours, theirs in zip(results[1], results[0], strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kernel", "channels"), [(2, 5), (4, 33)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_step_of_a_convolution(kernel: int, channels: int, biased: bool) -> None:
    torch.manual_seed(0)
    snapshots = Snapshots(np.array([2, 0]), np.array([1, 1]), np.array([7, 8]))
    context = decode_context([5, 1, 9], [4, 0, 2], 4, snapshots)
    conv = torch.randn(9, kernel - 1, channels)
    conv[0] = float("nan")
    x, weight = torch.randn(3, channels), torch.randn(kernel, channels)
    bias = torch.randn(channels) if biased else None
    results = []
    for ops in (TorchOps(), cpu.CpuOps()):
        cache = StateCache(conv.clone(), torch.zeros(9, 0))
        results.append((ops.plan_recurrent(context, cache).conv(x, weight, bias, cache), cache.conv))
    for ours, theirs in zip(results[1], results[0], strict=True):
        assert torch.isfinite(ours).all()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 7), (33, 64), (2, 3, 5)])
def test_norms(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weight = 3 * torch.randn(shape), torch.randn(shape[-1])
    ours = elementwise.rms_norm(x, weight, 1e-3)
    monkeypatch.setattr(cpu, "is_available", lambda: False)
    torch.testing.assert_close(ours, elementwise.rms_norm(x, weight, 1e-3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("count", "half"), [(1, 1), (3, 4), (5, 2)])
def test_rotation(count: int, half: int, interleaved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    heads, angles = torch.randn(6, 5, 9), torch.randn(6, half)
    ours, theirs = heads.clone(), heads.clone()
    elementwise.rotate(ours, count, angles.cos(), angles.sin(), interleaved)
    monkeypatch.setattr(cpu, "is_available", lambda: False)
    elementwise.rotate(theirs, count, angles.cos(), angles.sin(), interleaved)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours[:, count:], heads[:, count:])
    assert torch.equal(ours[..., 2 * half :], heads[..., 2 * half :])


def _run(
    ops: Ops,
    context: ForwardContext,
    cache: StateCache,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
) -> torch.Tensor:
    return ops.plan_recurrent(context, cache).scan(x, dt, a, b, c, cache)


def test_a_model_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without numba."""
    monkeypatch.setattr(cpu, "is_available", lambda: False)
    reference = random_reference(small_config("mFsM"))
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, 61, length).tolist() for length in (7, 38, 134)]
    schedule = [[1, 1, 70], [1, 30, 33], [1, 1, 1], [4, 6, 30]]
    for row, logits in zip(rows, chunked_logits(native_model(reference), rows, schedule)):
        torch.testing.assert_close(logits, reference_logits(reference, row, None), rtol=1e-3, atol=1e-3)


def test_the_kernels_leave_torch_its_number_of_threads() -> None:
    """numba and torch share one OpenMP; with more threads than torch wants, every product would wait for them."""
    code = (
        "import torch; from hybrid.models.ops import cpu; torch.set_num_threads(1); cpu.kernels();"
        "print(torch.__config__.parallel_info())"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "omp_get_max_threads() : 1\n" in output
