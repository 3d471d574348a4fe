"""Every model family computes what transformers computes, however its work is cut up.

The oracle is a random checkpoint that transformers saved, see `oracle`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybrid import LLM, RequestOutput, SamplingParams
from hybrid.models.families import FAMILIES
from hybrid.runner.loading import load
from tests.models.forward import chunked_logits

from .oracle import Oracle, all_cases, exporter

CASES = all_cases()
LENGTHS = (1, 6, 17, 33, 48, 75)
MAX_TOKENS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
TOLERANCE = 1e-4  # of the largest logit of a position

Tokens = list[tuple[int, ...]]


@pytest.fixture(scope="module", params=CASES, ids=list(CASES))
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(CASES[request.param], tmp_path_factory.mktemp("checkpoint"), export=exporter(request.param))


@pytest.fixture(scope="module")
def prompts(oracle: Oracle) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(2, oracle.vocab_size, length).tolist() for length in LENGTHS]


def engine(folder: Path, **arguments: Any) -> LLM:
    defaults = {"skip_tokenizer_init": True, "memory": "16MiB", "max_model_len": 128, "block_size": 8}
    return LLM(folder, dtype="float32", **{**defaults, **arguments})


def generate(llm: LLM, prompts: Sequence[Sequence[int]]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], GREEDY, use_tqdm=False)


def tokens(outputs: Sequence[RequestOutput]) -> Tokens:
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected(oracle: Oracle, prompts: list[list[int]]) -> Tokens:
    """Whole prompts, one at a time, no cache."""
    return tokens(generate(engine(oracle.folder, max_num_seqs=1, enable_prefix_caching=False), prompts))


def test_every_family_has_a_case() -> None:
    assert {name.split(":")[0] for name in CASES} == set(FAMILIES) - {"hybrid_native"}


@pytest.mark.parametrize(
    "schedule", [[[1, 70, 75]], [[1, 30, 30], [1, 1, 1], [1, 7, 5], [1, 2, 23], [1, 1, 17]], [[1, 1, 1]] * 12]
)
def test_logits_of_every_position(oracle: Oracle, schedule: list[list[int]]) -> None:
    decoder = load(oracle.folder, torch.float32).decoder
    counts = np.sum(schedule, axis=0)
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, oracle.vocab_size, count).tolist() for count in counts]
    for row, logits in zip(rows, chunked_logits(decoder, rows, schedule)):
        reference = oracle.logits(row)
        error = (logits - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)
        assert float(error.max()) < TOLERANCE


def test_greedy_tokens_are_those_of_the_oracle(oracle: Oracle, prompts: list[list[int]], expected: Tokens) -> None:
    for prompt, output in zip(prompts, expected):
        assert len(output) == MAX_TOKENS
        assert oracle.is_greedy(prompt, output)


@pytest.mark.parametrize("chunk", [5, 16])
def test_chunks_in_mixed_batches(oracle: Oracle, prompts: list[list[int]], expected: Tokens, chunk: int) -> None:
    llm = engine(oracle.folder, long_prefill_token_threshold=chunk, max_num_batched_tokens=32, max_num_seqs=6)
    assert tokens(generate(llm, prompts)) == expected


def test_resume_points(oracle: Oracle, prompts: list[list[int]], expected: Tokens) -> None:
    """On the second sighting everything hits but the prompt's last token."""
    llm = engine(oracle.folder, max_num_batched_tokens=64, max_num_seqs=6, num_state_slots=60, max_plans_in_flight=2)
    assert tokens(generate(llm, prompts)) == expected
    again = generate(llm, prompts)
    assert tokens(again) == expected
    assert [output.num_cached_tokens for output in again] == [length - 1 for length in LENGTHS]


def test_forced_retraction(oracle: Oracle, prompts: list[list[int]], expected: Tokens) -> None:
    llm = engine(oracle.folder, force_retraction_every=3, max_num_seqs=4, max_num_batched_tokens=48)
    assert tokens(generate(llm, prompts)) == expected
    assert llm.stats().retractions > 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes_stay_close(oracle: Oracle, dtype: torch.dtype) -> None:
    """Finite, and the best token is the same on at least 95 % of positions."""
    decoder = load(oracle.folder, dtype).decoder
    rng = np.random.default_rng(2)
    rows = [rng.integers(2, oracle.vocab_size, 60).tolist() for _ in range(8)]
    same = []
    for row, logits in zip(rows, chunked_logits(decoder, rows, [[60] * 8])):
        assert torch.isfinite(logits).all()
        same.append((logits.argmax(dim=-1) == oracle.logits(row).argmax(dim=-1)).float().mean())
    assert float(torch.stack(same).mean()) >= 0.95
