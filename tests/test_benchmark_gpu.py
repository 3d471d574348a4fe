"""The short form of `benchmarks/gpu.py`, without a GPU in Triton's interpreter, and what its long form needs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu_attention, gpu_code, gpu_elementwise, gpu_experts, gpu_lora, gpu_recurrent, gpu_sampling
from benchmarks.gpu import main
from benchmarks.gpu_case import Rates, Work, error
from benchmarks.gpu_models import REAL, RandomTensors, real_model, roofline
from benchmarks.gpu_same import CASES
from hybrid.capacity.step_time.step_work import StepWork
from hybrid.models.ops.triton import activation
from tests.models.families.oracle import all_cases
from tests.models.triton.test_compiled import kernels

CPU = torch.device("cpu")
FAMILIES = (gpu_attention, gpu_elementwise, gpu_experts, gpu_lora, gpu_recurrent, gpu_sampling)


def test_kernels_hold_and_every_one_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = set()
    kind: Any = type(activation._activate_and_multiply)  # interpreted or compiled
    run = kind.run

    def noted(kernel: Any, *args: Any, **options: Any) -> Any:
        launched.add(kernel.fn.__name__)
        return run(kernel, *args, **options)

    monkeypatch.setattr(kind, "run", noted)
    assert short_form(tmp_path, "kernels") == {"kernels"}
    assert kernels() <= launched


def test_models_and_engines_hold(tmp_path: Path) -> None:
    assert short_form(tmp_path, "models", "engines") == {"models", "engines"}


def short_form(folder: Path, *parts: str) -> set[str]:
    """The parts that it has results of; all hold, and none has a time."""
    path = folder / "results.json"
    assert main(["--short", "--parts", *parts, "--json", str(path)]) == 0
    entries = json.loads(path.read_text())["entries"]
    assert all(entry["ok"] for entry in entries)
    assert not any("seconds" in entry for entry in entries)
    return {entry["part"] for entry in entries}


def test_what_is_left_out_is_no_success() -> None:
    program = [sys.executable, "-m", "benchmarks.gpu", "--short", "--parts", "kernels", "--only", "silu"]
    done = subprocess.run([*program, "--seconds", "0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "failed: kernels, silu and mul" in done.stdout


@pytest.mark.parametrize("value", [1.5, float("nan")])
def test_one_wrong_result_is_an_error(value: float) -> None:
    right, wrong = torch.ones(4), torch.tensor([1.0, 1.0, value, 1.0])
    work = Work(lambda: [right, wrong, right], lambda: [right] * 3, lambda: None, 1.0)
    assert not error(work) < 0.2


def test_long_cases_bear_the_names_that_short_ones_do_not_need() -> None:
    for family in FAMILIES:
        names = [case.name for case in family.cases(CPU, torch.bfloat16, False)]
        assert len(set(names)) == len(names) >= 8


def test_engines_are_compared_on_cases_that_exist() -> None:
    assert set(CASES) <= set(all_cases())


@pytest.mark.parametrize("name", REAL)
def test_rooflines_of_real_shapes(name: str) -> None:
    """A step of one row reads about all weights once, less what a table and idle experts leave."""
    model = real_model(name)
    weights = 2 * sum(torch.Size(shape).numel() for shape in model.tensors().values())
    work = StepWork(np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 1)
    seconds = roofline(model, Rates(bandwidth=1e12, matrix=1e15)).seconds(work)
    assert 0.1 * weights < seconds * 1e12 < 1.2 * weights


def test_random_weights_are_finite_and_of_about_unit_gain() -> None:
    model = real_model("Nemotron-H-8B-Base-8K")
    tensors = RandomTensors(model, CPU)
    name = next(name for name, shape in model.tensors().items() if len(shape) == 2 and "in_proj" in name)
    assert tensors[name].shape == model.tensors()[name]
    assert float(tensors[name][:64].float().norm(dim=1).mean()) == pytest.approx(1, rel=0.05)


def test_machine_code_of_a_model_is_read() -> None:
    """Every line has the columns of the head, and nothing of a tiny model spills."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    program = [sys.executable, "-m", "benchmarks.gpu_code", "--models", gpu_code.TINY, "--steps", "one", "chunks"]
    output = subprocess.run(program, check=True, capture_output=True, text=True, env=environment).stdout
    lines = [line.split() for line in output.splitlines() if line[:1].strip()][2:]
    assert {"attend", "combine", "conv_step", "cut", "ssd_read", "ssd_step", "write"} <= {line[0] for line in lines}
    assert all(0 < int(line[1]) < 256 and line[2] == "-" and int(line[5]) > 0 for line in lines)
    chunks = next(line for line in lines if line[0] == "attend" and line[8] == "wgmma")
    assert int(chunks[9]) > 0 and any(load.startswith("128:") for load in chunks[10:])
