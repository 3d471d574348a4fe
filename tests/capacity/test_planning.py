"""Planner = engine: planned bytes are those of the pool tensors, planned concurrency is what the scheduler reaches."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hybrid.capacity.model_file import open_model
from hybrid.capacity.planning import Plan, Request, plan
from hybrid.pools.sizing import Kinds
from hybrid.runner.caches import Caches
from hybrid.scheduler.plan import StepResult
from hybrid.scheduler.request import NewRequest
from hybrid.scheduler.scheduler import Scheduler

CONFIGS = sorted((Path(__file__).parent.parent / "models" / "families" / "model_configs").glob("*.json"))
BY_NAME = {path.stem: path for path in CONFIGS}
GIB = 2**30


def made(path: Path, memory: int, context: int, output: int = 512, **more: int) -> Plan:
    return plan(path.stem, open_model(path), memory, Request(context, output), **more)


def peak_running(planned: Plan, context: int, output: int) -> int:
    """Most requests at once when the real scheduler serves more of them than were planned."""
    scheduler = Scheduler(planned.args.scheduler_config(0), planned.sizes, Kinds.of(planned.spec))
    for index in range(planned.concurrency + 3):
        prompt = np.full(context, 1 + index, dtype=np.int32)
        scheduler.add(NewRequest(f"r{index}", prompt, max_tokens=output))
    peak = 0
    while (step := scheduler.schedule()) is not None:
        peak = max(peak, scheduler.stats().num_running)
        count = int(step.samples.sum())
        scheduler.commit(
            StepResult(
                step_id=step.step_id,
                sampled_token_ids=np.ones((count, 1), dtype=np.int32),
                num_sampled=np.ones(count, dtype=np.int64),
                draft_token_ids=np.zeros((count, 0), dtype=np.int32),
                num_drafts=np.zeros(count, dtype=np.int64),
            )
        )
    assert scheduler.num_unfinished == 0
    assert scheduler.stats().retractions == 0
    return peak


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_planned_bytes_are_those_of_the_pool_tensors(path: Path) -> None:
    planned = made(path, 40 * GIB, 1536)
    caches = Caches(planned.spec, planned.sizes, torch.device("meta"))
    block = planned.sizes.block_size
    guards = block * (planned.spec.full_bytes_per_token + planned.spec.window_bytes_per_token)  # a zero block per layer
    held = sum(tensor.numel() * tensor.element_size() for tensor in caches.tensors())
    assert held - guards == planned.pools.total <= planned.memory_bytes


@pytest.mark.parametrize("name", ["Jamba-v0.1", "gemma-3-12b-it", "gpt-oss-20b", "granite-4.0-h-tiny", "mamba-130m-hf"])
def test_planned_concurrency_is_reached(name: str) -> None:
    planned = made(BY_NAME[name], 2 * GIB, 1000, 300, max_num_seqs=12)
    assert peak_running(planned, 1000, 300) == planned.concurrency


def test_a_budget_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not fit|does not hold one request|fits into"):
        made(BY_NAME["Jamba-v0.1"], 1000, 1000)
    unknown = tmp_path / "config.json"
    unknown.write_text(json.dumps({"model_type": "nothing"}), encoding="utf-8")
    with pytest.raises(ValueError, match="model_type 'nothing' is not supported"):
        open_model(unknown)
