"""What real families say does not depend on what happens around them: see `hostile`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybrid import LLM, SamplingParams

from .hostile import CONTEXT, Interrupts, Wanted, assert_idle, disturb, settings, undisturbed, wanted, write_tokenizer
from .oracle import Oracle, all_cases, exporter

CASES = (
    "gpt_oss: yarn",  # windows smaller than a block, experts
    "jamba: two of five",  # Mamba, attention, experts
    "qwen3_next: every third layer",  # delta nets, attention
    "recurrent_gemma: attention last",  # RG-LRU, windows only: nothing that could be short
)
NUM_REQUESTS = 12


class Family:
    """A checkpoint with a tokenizer that knows some of its tokens, and what it says undisturbed."""

    def __init__(self, case: str, folder: Path) -> None:
        self.folder, self.tokenizer = folder / "model", folder / "tokenizer"
        [name] = [name for name in all_cases() if name.startswith(case)]
        vocab_size = Oracle(all_cases()[name], self.folder, export=exporter(name)).vocab_size
        self.has_full_attention = not name.startswith("recurrent_gemma")
        write_tokenizer(self.tokenizer, vocab_size - 5)
        self.requests: list[Wanted] = wanted(undisturbed(self.folder, self.tokenizer), vocab_size, NUM_REQUESTS, seed=0)

    def engine(self, **arguments: Any) -> LLM:
        defaults: dict[str, Any] = {
            "tokenizer": self.tokenizer,
            "dtype": "float32",
            "memory": "16MiB",
            "max_model_len": CONTEXT,
        }
        return LLM(self.folder, **{**defaults, **arguments})


@pytest.fixture(scope="module", params=CASES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp("family"))


@pytest.mark.parametrize("plans", [1, 2])
def test_pools_so_small_that_requests_are_retracted(family: Family, plans: int) -> None:
    """Blocks for one request and a half; some requests are aborted."""
    llm = family.engine(
        block_size=3,
        max_num_seqs=6,
        max_plans_in_flight=plans,
        num_full_blocks=CONTEXT // 2,
        initial_output_ratio=0.0,
        scheduling_policy="priority",
        enable_prefix_caching=plans == 2,
        long_prefill_token_threshold=5,
    )
    disturb(llm, family.requests, np.random.default_rng(plans), failures=0.0)
    assert llm.stats().retractions > 0 or not family.has_full_attention


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_that_fail_under_random_settings(family: Family, seed: int) -> None:
    rng = np.random.default_rng(seed)
    llm = family.engine(**settings(rng))
    assert disturb(llm, family.requests, rng) > 0


def test_ctrl_c_within_steps(family: Family) -> None:
    """A call that is interrupted leaves nothing; the next says what it should, twice with n = 2."""
    llm = family.engine(max_num_seqs=4, max_plans_in_flight=2, block_size=8)
    request = max(family.requests, key=lambda request: len(request.token_ids))
    prompts = [
        {"prompt_token_ids": request.prompt},
        {"prompt_token_ids": request.prompt[: len(request.prompt) // 2 + 1]},
    ]
    twice = SamplingParams(temperature=0, max_tokens=CONTEXT // 3, ignore_eos=True, n=2)
    whole = [[tuple(c.token_ids) for c in output.outputs] for output in llm.generate(prompts, twice, use_tqdm=False)]
    assert whole[0][0] == whole[0][1]
    for step in range(1, 12):
        with Interrupts(llm, step), pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, twice, use_tqdm=False)
        assert_idle(llm)
    again = [[tuple(c.token_ids) for c in output.outputs] for output in llm.generate(prompts, twice, use_tqdm=False)]
    assert again == whole


def test_prompts_longer_than_everything_are_refused(family: Family) -> None:
    llm = family.engine()
    for length in (CONTEXT, 10 * CONTEXT):
        with pytest.raises(ValueError, match=str(CONTEXT)):
            llm.generate({"prompt_token_ids": [2] * length}, use_tqdm=False)
    [output] = llm.generate({"prompt_token_ids": [2] * (CONTEXT - 1)}, SamplingParams(max_tokens=None), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 1
    assert_idle(llm)
