"""A GPU's memory, said by a driver that is not there: pools get what weights and steps leave."""

import logging

import pytest
import torch

from hybrid.capacity.hardware import find_hardware
from hybrid.capacity.sizing.planning import plan
from hybrid.capacity.sizing.working_memory import WorkingMemory
from hybrid.engine_args import EngineArgs
from hybrid.engine_memory import gpu_memory_for_pools, gpu_pool_memory
from hybrid.engine_setup import _memory
from tests.capacity.questions import question

GIB = 2**30
CUDA = torch.device("cuda")
WORKING = WorkingMemory(layers=GIB, sampling=2 * GIB, encoder=0, scratch=0, tables=0, graphs=GIB)


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 GiB of 80 are free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))


def test_pools_get_what_steps_leave() -> None:
    assert _memory(EngineArgs(model="any"), CUDA, WORKING) == 57 * GIB - WORKING.total == 54 * GIB
    assert _memory(EngineArgs(model="any", gpu_memory_utilization=0.5), CUDA, WORKING) == 16 * GIB
    assert gpu_pool_memory(gpu_memory_for_pools(54 * GIB, WORKING.total), WORKING.total) in range(
        54 * GIB, 54 * GIB + 9
    )


def test_steps_that_leave_nothing() -> None:
    args = EngineArgs(model="any", gpu_memory_utilization=0.28, max_num_batched_tokens=4096, max_num_seqs=7)
    with pytest.raises(
        ValueError, match=r"steps of 4096 tokens and 7 requests need 3,221,225,472 bytes \(layers .*\), "
    ):
        _memory(args, CUDA, WORKING)


def test_memory_that_somebody_gave(caplog: pytest.LogCaptureFixture) -> None:
    assert _memory(EngineArgs(model="any", memory="56GiB"), CUDA, WORKING) == 56 * GIB
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert _memory(EngineArgs(model="any", memory="58GiB"), CUDA, WORKING) == 58 * GIB
    assert "steps need 3,221,225,472 bytes" in caplog.text


def test_the_planner_counts_what_the_engine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers of requests, from the same memory."""
    asked = question("Qwen3-8B", memory_bytes=None, hardware=find_hardware("h100"), weights_dtype="bfloat16")
    made = plan(asked)
    assert made.working is not None
    total, weights = 80 * GIB, made.weights_bytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (total - weights, total))
    assert _memory(EngineArgs(model="any"), CUDA, made.working) == made.memory_bytes >= made.pools.total
    less = plan(question("Qwen3-8B", memory_bytes=None, hardware=find_hardware("h100"), weights_dtype="bfloat16",
                         gpu_memory_utilization=0.5))  # fmt: skip
    assert less.memory_bytes < made.memory_bytes - 39 * GIB * 19 // 20
