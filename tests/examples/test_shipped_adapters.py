"""The two adapters in the repository: small, and what they are called, on pictures that training never saw."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("sklearn")

from examples.conversations import Conversation, picture_turns
from examples.digits_data import load_split
from examples.evaluate_tiny import HELD_OUT_SEEDS
from examples.lora_serving import ADAPTERS
from examples.other_answers import REWRITES, rewritten
from hybrid import LLM, LoRARequest, SamplingParams

NUM_QUESTIONS = 90
LEAST_RIGHT = {"spanish": 0.5, "json": 0.7}  # wholly right answers; 62 and 81 % of 300 when they were trained


@pytest.mark.parametrize("name", list(LEAST_RIGHT))
def test_each_is_under_a_megabyte(name: str) -> None:
    assert sum(file.stat().st_size for file in (ADAPTERS / name).iterdir()) < 1_000_000


def test_they_answer_as_their_names_say() -> None:
    _, held_out = load_split()
    turns = [
        picture_turns(random.Random(HELD_OUT_SEEDS + i), held_out, 1, 0.33, warp=False) for i in range(NUM_QUESTIONS)
    ]
    asked = [Conversation(tuple(one)) for one in turns]
    llm = LLM("tiny", enable_lora=True, max_loras=2, max_lora_rank=32, memory="128MiB")
    requests = {
        name: LoRARequest(name, number, str(ADAPTERS / name)) for number, name in enumerate(LEAST_RIGHT, start=1)
    }
    messages, adapters = [], []
    for conversation in asked:  # both adapters and the base model side by side
        [picture] = conversation.pictures()
        [message] = conversation.messages()
        parts = [part if part["type"] == "text" else part | {"image": picture.image} for part in message["content"]]
        messages += [[message | {"content": parts}]] * (1 + len(requests))
        adapters += [None, *requests.values()]
    params = SamplingParams(temperature=0, max_tokens=40)
    outputs = llm.chat(messages, params, lora_request=adapters, use_tqdm=False)
    answers = [output.outputs[0].text for output in outputs]
    for place, name in enumerate(requests, start=1):
        said = answers[place :: 1 + len(requests)]
        right = [rewritten(conversation, REWRITES[name]).turns[-1].answer for conversation in asked]
        share = sum(a == b for a, b in zip(said, right, strict=True)) / NUM_QUESTIONS
        assert share >= LEAST_RIGHT[name], f"{name}: {share:.1%}"
        if name == "json":
            assert all(isinstance(json.loads(answer), dict) for answer in said)
