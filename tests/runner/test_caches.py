"""The tensors of the pools: zeros at first, and on a CPU no memory before it is used."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hybrid.models.context import StateCache
from hybrid.pools.sizing import PoolSizes
from hybrid.pools.specs import FullAttentionSpec, MambaSpec, ModelSpec, SlidingWindowSpec
from hybrid.runner import caches as caches_module
from hybrid.runner.caches import Caches

SPEC = ModelSpec(
    ((FullAttentionSpec(2, 64),), (SlidingWindowSpec(2, 64, 5),), (MambaSpec((12, 3), (2, 6, 4)),)),
)
SIZES = PoolSizes(
    num_rows=1,
    num_full_blocks=3,
    num_window_blocks=3,
    num_state_slots=3,
    encoder_tokens=0,
    lora_units=0,
    block_size=16,
    sliding_window=5,
    max_model_len=16,
)
CPU = torch.device("cpu")


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_tensors_are_zero_and_keep_what_is_written() -> None:
    caches = Caches(SPEC, SIZES, CPU)
    tensors = caches.tensors()
    assert len(tensors) == 4 and all(not tensor.any() for tensor in tensors)
    for number, tensor in enumerate(tensors, start=1):
        tensor[1] = number
    del caches
    assert [tensor[1].unique().tolist() for tensor in tensors] == [[1], [2], [3], [4]]
    assert not any(tensor[0].any() or tensor[2].any() for tensor in tensors)


@pytest.mark.parametrize("pool", ["num_full_blocks", "num_window_blocks", "num_state_slots"])
def test_a_large_pool_takes_memory_only_as_it_is_used(pool: str) -> None:
    before = resident()
    caches = Caches(SPEC, replace(SIZES, **{pool: 400_000 if pool == "num_state_slots" else 30_000}), CPU)
    largest = max(caches.tensors(), key=lambda tensor: tensor.nbytes)
    assert resident() - before < largest.nbytes // 4
    largest[: len(largest) // 2] = 1
    assert resident() - before > largest.nbytes // 4


def test_pools_without_a_unit_are_empty() -> None:
    caches = Caches(SPEC, replace(SIZES, num_state_slots=0), CPU)
    assert [tensor.numel() for tensor in caches.tensors()][2:] == [0, 0]


@pytest.mark.parametrize("copied_bytes", [1, 700, 2**20])
def test_states_of_all_layers_are_copied(copied_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of two kinds in turns, whatever is copied at once; the slots may trade places."""
    monkeypatch.setattr(caches_module, "COPIED_BYTES", copied_bytes)
    other = MambaSpec((4, 2), ())
    mixers = ((SPEC.layers[2][0],), (other,), (SPEC.layers[2][0], other))
    caches = Caches(ModelSpec(mixers), replace(SIZES, num_state_slots=4), CPU)
    states = [cache for cache in caches.layers if isinstance(cache, StateCache)]
    tensors = [tensor for cache in states for tensor in (cache.conv, cache.ssm) if tensor.numel()]
    assert [cache.conv.shape for cache in states] == [(4, 3, 12), (4, 2, 4)] * 2 and len(tensors) == 6
    for number, tensor in enumerate(tensors):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
    before = [tensor.clone() for tensor in tensors]
    caches.copy_states(np.array([[0, 2], [2, 0], [3, 1]]))
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old[[2, 3, 0, 3]])
