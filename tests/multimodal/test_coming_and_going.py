"""Requests with images that come, break and are aborted at any moment: the others' answers are what they are alone, and
every ledger comes back to its start."""

import random
from typing import Any

import pytest
import torch

from hybrid import LLM, SamplingParams
from hybrid.driver import Driver
from hybrid.frontend.collector import Collector
from hybrid.frontend.messages import read_conversation
from hybrid.frontend.prompt import Prompt

from .oracle import Oracle, all_cases, picture
from .test_odd_pictures import assert_idle

CASES = ("llava: CLIP", "gemma3: windows", "qwen3_5: delta nets", "mistral3: rows")
SIZES = ((40, 23), (16, 16), (9, 31), (40, 24))  # the last one may be another number of tokens than the first
NUM_REQUESTS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module", params=CASES)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(all_cases()[request.param], tmp_path_factory.mktemp("checkpoint"))


def engine(oracle: Oracle, **arguments: Any) -> LLM:
    return LLM(oracle.folder, dtype="float32", memory="16MiB", max_model_len=256, block_size=8, **arguments)


def some_chat(rng: random.Random) -> list[dict[str, Any]]:
    """Images at the first and last token of what a user says, the same one twice, equal beginnings."""
    content: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 3)):
        index = rng.randrange(len(SIZES))
        content.append({"type": "image", "image": picture(index, *SIZES[index])})
        if rng.random() < 0.5:
            content.append({"type": "text", "text": "words and words"[: rng.randrange(16)]})
    return [{"role": "user", "content": content}]


def prompts(llm: LLM, rng: random.Random) -> list[Prompt]:
    return [llm._processor.process_chat(read_conversation(some_chat(rng))) for _ in range(NUM_REQUESTS)]


def largest(prompts: list[Prompt]) -> int:
    """Tokens of the largest image."""
    return max(image.num_tokens for prompt in prompts for image in prompt.images)


def answers(llm: LLM, prompts: list[Prompt]) -> list[tuple[int, ...]]:
    """Each alone."""
    found = []
    for prompt in prompts:
        driver = Driver(llm.engine, llm._processor, 0)
        [collector] = driver.submit([prompt], [GREEDY], [0])
        while not collector.finished:
            driver.step()
        found.append(tuple(collector.output().outputs[0].token_ids))
    return found


class Failing:
    """An encoder that now and then raises in the middle of a step, before or after it has computed."""

    def __init__(self, encoder: Any, rng: random.Random) -> None:
        self._encoder = encoder
        self._rng = rng
        self.num_failures = 0

    def __call__(self, inputs: Any) -> Any:
        embeddings = self._encoder(inputs)
        if self._rng.random() < 0.2:
            self.num_failures += 1
            for one in embeddings:
                one.fill_(torch.nan)
            raise RuntimeError("the encoder broke")
        return embeddings


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_plans_in_flight": 2, "max_num_seqs": 6},
        {"force_retraction_every": 3, "max_num_seqs": 6},
        {"max_plans_in_flight": 2, "max_num_seqs": 3, "max_num_batched_tokens": 19, "force_retraction_every": 5},
    ],
)
@pytest.mark.parametrize("breaks", [False, True])
def test_aborts_at_any_moment(oracle: Oracle, arguments: dict[str, Any], breaks: bool) -> None:
    rng = random.Random(str(arguments))
    alone = engine(oracle, max_num_seqs=1, enable_prefix_caching=False)
    asked = prompts(alone, rng)
    expected = answers(alone, asked)
    llm = engine(oracle, encoder_tokens=largest(asked), **arguments)
    runner: Any = llm.engine._runner
    failing = Failing(runner._encoder, rng)
    if breaks:
        runner._encoder = failing
    driver = Driver(llm.engine, llm._processor, 0)
    running: dict[Collector, int] = {}
    waiting = list(range(NUM_REQUESTS))
    num_aborted = num_failed = 0
    while waiting or driver.is_busy:
        while waiting and rng.random() < 0.5:
            index = waiting.pop()
            running[driver.submit([asked[index]], [GREEDY], [0])[0]] = index
        if running and rng.random() < 0.15:
            driver.abort([rng.choice([*running])])
        driver.step()
        llm.engine.scheduler.check()
        for collector in [collector for collector in running if collector.finished]:
            [output], index = collector.output().outputs, running.pop(collector)
            if output.finish_reason == "abort":
                num_aborted += 1
            elif output.finish_reason == "length":
                assert tuple(output.token_ids) == expected[index]
            else:
                num_failed += 1
                assert "the encoder broke" in str(collector.output().error)
    assert 0 < num_aborted < NUM_REQUESTS / 2
    assert num_failed == 0 if not breaks else failing.num_failures > 0
    assert_idle(llm.stats())
