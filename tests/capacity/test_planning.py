"""Planner = engine: planned bytes are those of the pool tensors, planned concurrency is what the scheduler reaches."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hybrid.capacity.model_file import open_model
from hybrid.capacity.planning import Plan, Request, plan
from hybrid.cli import app
from hybrid.pools.sizing import Kinds
from hybrid.runner.caches import Caches
from hybrid.scheduler.plan import StepResult
from hybrid.scheduler.request import NewRequest
from hybrid.scheduler.scheduler import Scheduler

CONFIGS = sorted((Path(__file__).parent.parent / "models" / "families" / "model_configs").glob("*.json"))
BY_NAME = {path.stem: path for path in CONFIGS}
GIB = 2**30


def made(path: Path, memory: int, context: int, output: int = 512, max_num_seqs: int | None = None) -> Plan:
    request = Request(context, output)
    return plan(path.stem, open_model(path), memory, request, max_num_seqs=max_num_seqs)


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
    held = sum(tensor.numel() * tensor.element_size() for tensor in caches.tensors())
    assert held == planned.pools.total <= planned.memory_bytes


@pytest.mark.parametrize("name", ["Jamba-v0.1", "gemma-3-12b-it", "gpt-oss-20b", "granite-4.0-h-tiny", "mamba-130m-hf"])
def test_planned_concurrency_is_reached(name: str) -> None:
    planned = made(BY_NAME[name], 2 * GIB, 1000, 300, max_num_seqs=12)
    assert peak_running(planned, 1000, 300) == planned.concurrency


def test_a_budget_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not (fit|hold one request)|no request of"):
        made(BY_NAME["Jamba-v0.1"], 1000, 1000)
    unknown = tmp_path / "config.json"
    unknown.write_text(json.dumps({"model_type": "nothing"}), encoding="utf-8")
    with pytest.raises(ValueError, match="model_type 'nothing' is not supported"):
        open_model(unknown)


@pytest.mark.parametrize("tokens", [2048, 8192, 32768, 131072])
@pytest.mark.parametrize(
    "name",
    ["Jamba-v0.1", "Nemotron-H-8B-Base-8K", "granite-4.0-h-tiny", "Falcon-H1-7B", "gemma-3-12b-it", "gpt-oss-20b",
     "Qwen3-Next-80B-A3B-Instruct"],
)  # fmt: skip
def test_capacity_is_close_to_the_bytes(name: str, tokens: int) -> None:
    """At least 0.97 of the budget over the bytes of one decoding request without any padding."""
    model = open_model(BY_NAME[name])
    longer = replace(model, decoder=replace(model.decoder, max_positions=max(tokens, model.decoder.max_positions)))
    planned = plan(name, longer, 40 * GIB, Request(tokens - 256, 256))
    spec = planned.spec
    one = tokens * spec.full_bytes_per_token + min(tokens, spec.sliding_window) * spec.window_bytes_per_token
    assert planned.concurrency >= 0.97 * (40 * GIB // (one + spec.state_bytes_per_slot))


def test_the_command() -> None:
    arguments = ["plan", str(BY_NAME["gpt-oss-20b"]), "--gpu", "h100", "--context", "8k", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["pool_bytes"]["total"] <= document["memory_bytes"]
    assert CliRunner().invoke(app, ["plan", "tiny", "--memory", "1KiB", "--context", "512"]).exit_code == 2
