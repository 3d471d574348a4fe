"""The estimate of what a step holds, beside the peak that torch's profiler sees in a step of the CPU runner."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile

from hybrid import LLM, SamplingParams
from hybrid.capacity.activations import SCAN_BLOCK, activation_bytes
from hybrid.capacity.model_file import open_model
from hybrid.frontend.prompt import Prompt
from hybrid.models.ops.recurrent_plan import LONG_BLOCK
from tests.models.families.oracle import Oracle, all_cases

# Of each kind of layer: the widest parts of these are attention, an MLP, experts, a recurrence of every kind.
KINDS = ("llama", "gpt_oss", "jamba", "mamba2", "falcon_h1", "qwen3_next", "recurrent_gemma", "lfm2", "zamba2")


def peak_bytes(model: str | Path, num_tokens: int, num_seqs: int, dtype: str) -> int:
    """Most bytes beyond those before it while one step computes whole prompts of so many tokens together."""
    llm = LLM(
        model, device="cpu", dtype=dtype, memory="64MiB", skip_tokenizer_init=True, max_num_batched_tokens=num_tokens,
        max_num_seqs=num_seqs, max_model_len=num_tokens // num_seqs + 1, enable_prefix_caching=False,
    )  # fmt: skip
    params = SamplingParams(max_tokens=1, ignore_eos=True, temperature=0.0)

    def step() -> None:
        for index in range(num_seqs):
            tokens = np.random.default_rng(index).integers(3, 90, num_tokens // num_seqs)
            llm.engine.add_request(f"r{index}", Prompt(None, tokens.astype(np.int32)), params, max_tokens=1)
        while llm.engine.has_unfinished:
            llm.engine.step()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events: Any = seen.profiler.kineto_results.events()
    memory = sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns())
    return int(np.cumsum([event.nbytes() for event in memory]).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bundled_model(dtype: str) -> None:
    estimate = activation_bytes(open_model("tiny"), 1024, 8, dtype)
    assert estimate == pytest.approx(peak_bytes("tiny", 1024, 8, dtype), rel=0.25)


@pytest.mark.parametrize("family", KINDS)
def test_every_kind_of_layer(family: str, tmp_path: Path) -> None:
    """Within a factor of 1.5, though these are so narrow that what does not grow with the width shows."""
    case = next(config for name, config in all_cases().items() if name.startswith(f"{family}:"))
    Oracle(case, tmp_path)
    estimate = activation_bytes(open_model(tmp_path), 1024, 16, "float32")
    measured = peak_bytes(tmp_path, 1024, 16, "float32")
    assert measured / 1.5 < estimate < 1.5 * measured


def test_blocks_of_a_scan() -> None:
    assert SCAN_BLOCK == LONG_BLOCK
