"""Warming up: what is compiled on first use is there before the first request, and nothing else has changed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hybrid.checkpoints import find_checkpoint
from hybrid.engine_args import EngineArgs
from hybrid.engine_setup import set_up
from hybrid.models.loading import read_config
from hybrid.warm_up import warm_up
from tests.adapters.written import write_adapter

# In a process of its own: kernels, once compiled, stay for all tests of a process.
PROGRAM = """
import json, sys
from hybrid import LLM, LoRARequest, SamplingParams
from hybrid import llm as module
from hybrid.models.ops import cpu
from hybrid.warm_up import warm_up

def compiled():
    kernels = vars(cpu.kernels())
    return {name: len(kernel.signatures) for name, kernel in kernels.items() if hasattr(kernel, "signatures")}

setups = []
def kept(args, set_up=module.set_up):
    setups.append(set_up(args))
    return setups[0]
module.set_up = kept
llm = LLM("tiny", memory="32MiB", num_threads=1, enable_lora=True)
warm_up(setups[0])
before = compiled()
poet = LoRARequest("poet", 1, sys.argv[1])
params = SamplingParams(max_tokens=4, ignore_eos=True, seed=1)
llm.generate(["Hello there", "Hello"], params, use_tqdm=False, lora_request=[None, poet])
print(json.dumps([before, compiled()]))
"""


def adapter(folder: Path) -> Path:
    targets = read_config(find_checkpoint("tiny")).lora_targets()
    return write_adapter(folder, {name: shape for name, shape in targets.items() if "q_proj" in name})


def test_no_request_waits_for_a_kernel(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, adapter(tmp_path / "poet")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = json.loads(done.stdout)
    assert before == after
    used = {"attend", "ssd_step", "conv_step", "rms_norm", "rotate_halves", "add_low_rank"}
    assert {name for name, number in before.items() if number} == used


@pytest.mark.parametrize("max_model_len", [2, 3, 64])
def test_the_engine_is_as_new(max_model_len: int, capsys: pytest.CaptureFixture[str]) -> None:
    setup = set_up(EngineArgs(model="tiny", max_model_len=max_model_len, memory="32MiB", num_threads=1))
    before = setup.engine.scheduler.stats()
    warm_up(setup)
    assert setup.engine.scheduler.stats() == before
    assert "warming up: 100%" in capsys.readouterr().err


@pytest.mark.parametrize("blocks", [1, 2, 4, 5])
def test_pools_may_hold_less_than_a_longest_request(blocks: int, caplog: pytest.LogCaptureFixture) -> None:
    args = EngineArgs(
        model="tiny",
        max_model_len=17,
        block_size=1,
        memory="8MiB",
        num_full_blocks=blocks,
        num_window_blocks=blocks,
        num_state_slots=1,
        limit_mm_per_prompt={"image": 0},
    )
    warm_up(set_up(args))
    assert not caplog.records


def test_a_step_that_fails_is_told_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = set_up(EngineArgs(model="tiny", memory="32MiB", num_threads=1))
    monkeypatch.setattr(setup.runner, "execute", raising(RuntimeError("no kernel")))
    warm_up(setup)
    assert "a step that was to warm up the engine failed: RuntimeError: no kernel" in caplog.text


def test_a_step_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = set_up(EngineArgs(model="tiny", memory="32MiB", num_threads=1))
    monkeypatch.setattr(setup.runner, "execute", raising(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(ValueError, match="does not hold a step of 2048 tokens beside the pools; lower gpu_memory_util"):
        warm_up(setup)


def raising(error: Exception) -> Callable[..., None]:
    def execute(*_: object) -> None:
        raise error

    return execute
