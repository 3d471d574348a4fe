"""What scripts written for vLLM pass: taken where it asks for what happens anyway, refused in a sentence otherwise."""

from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from hybrid import LLM
from hybrid.cli import app
from hybrid.engine_args import EngineArgs
from hybrid.engine_memory import usable_gpu_memory

GIB = 2**30


@pytest.mark.parametrize(("dtype", "number"), [("float", 4), ("half", 2)])
def test_an_llm_as_scripts_for_vllm_make_it(dtype: str, number: int) -> None:
    llm = LLM(
        "tiny",
        tensor_parallel_size=1,
        gpu_memory_utilization=0.9,
        enforce_eager=True,
        trust_remote_code=False,
        enable_chunked_prefill=True,
        quantization=None,
        swap_space=4,
        enable_tower_connector_lora=True,
        dtype=dtype,
        memory="32MiB",
        max_plans_in_flight=2,
    )
    assert llm.engine.scheduler.config.max_plans_in_flight == 2
    [output] = llm.generate({"prompt_token_ids": [5, 6]}, use_tqdm=False)
    assert output.error is None


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("tensor_parallel_size", 2, "tensor_parallel_size 2 is not supported: a model runs on one device"),
        ("trust_remote_code", True, "trust_remote_code True is not supported: no code of a checkpoint is ever run"),
        ("quantization", "awq", "quantization 'awq' is not supported: weights are served in a floating-point dtype"),
        ("kv_cache_dtype", "fp8", "kv_cache_dtype 'fp8' is not supported: keys and values have the dtype"),
        ("enable_chunked_prefill", False, "enable_chunked_prefill False is not supported: prompts that do not fit"),
        ("quantization", ["awq"], r"quantization \['awq'\] is not supported"),
        ("gpu_memory_utilization", 1.5, "gpu_memory_utilization must be more than 0 and at most 1, got 1.5"),
        ("gpu_memory_utilization", "much", "gpu_memory_utilization must be more than 0 and at most 1, got 'much'"),
        ("dtype", "int8", "dtype must be one of auto, float32, bfloat16, float16, got 'int8'"),
        ("enable_tower_connector_lora", False, "enable_tower_connector_lora False is not supported: lora_target"),
        ("no_such_argument", 1, "unknown argument no_such_argument"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        LLM("tiny", **{name: value})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--tool-call-parser", "mistral"), "tool_call_parser 'mistral' is not supported: calls are read as"),
        (("-tp", "2"), "tensor_parallel_size 2 is not supported"),
        (("--trust-remote-code",), "trust_remote_code True is not supported"),
        (("--gpu-memory-utilization", "0"), "gpu_memory_utilization must be more than 0"),
    ],
)
def test_flags_that_cannot_be_honoured_end_the_server(flags: Sequence[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["serve", "tiny", *flags])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(sentence)


def test_flags_that_choose_nothing_are_taken() -> None:
    """The wrong model is only found after the flags were read."""
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--gpu-memory-utilization", "0.9"]
    flags += ["--enable-tower-connector-lora"]
    flags += ["-tp", "1", "--enforce-eager", "--enable-chunked-prefill", "--kv-cache-dtype", "auto", "--dtype", "half"]
    done = CliRunner().invoke(app, ["serve", "no-such-model", *flags])
    assert done.exit_code == 2 and "'no-such-model' is neither a folder nor" in done.stderr


def test_the_share_of_a_gpu() -> None:
    assert EngineArgs(model="any", gpu_memory_utilization=1).gpu_memory_utilization == 1
    assert usable_gpu_memory(60 * GIB, 80 * GIB, None) == 60 * GIB
    assert usable_gpu_memory(60 * GIB, 80 * GIB, 0.75) == 40 * GIB
    with pytest.raises(ValueError, match=r"0.25 of 85,899,345,920 bytes leaves nothing .* 21,474,836,480 are in use"):
        usable_gpu_memory(60 * GIB, 80 * GIB, 0.25)
