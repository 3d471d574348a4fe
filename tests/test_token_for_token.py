"""The engine's greedy output equals the plain-torch reference token for token, whatever way the work is cut up.

One run with whole prompts, one at a time and without any cache, is compared with the reference position by position
(an output is the greedy one exactly if at every position the reference's best next token is the one that follows).
Every other way of running must then give the same tokens.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import AutoTokenizer

from examples.conversations import IMAGE, Conversation, random_conversation
from examples.digits_data import load_split
from hybrid import LLM, RequestOutput, SamplingParams
from hybrid.checkpoints import find_checkpoint
from hybrid.encoders.preprocess import preprocess
from hybrid.models.reference import NativeReference

NUM_PROMPTS = 208
MAX_TOKENS = 20
DIRECTORY = find_checkpoint("tiny")
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)

Prompt = dict[str, Any]
Tokens = list[tuple[int, ...]]


def engine(**arguments: Any) -> LLM:
    defaults = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "memory": "256MiB", "max_model_len": 1024}
    return LLM("tiny", **{**defaults, **arguments})


def tokens(outputs: Sequence[RequestOutput]) -> Tokens:
    return [tuple(completion.token_ids) for output in outputs for completion in output.outputs]


@pytest.fixture(scope="module")
def template() -> Any:
    """The checkpoint's tokenizer as transformers loads it."""
    return AutoTokenizer.from_pretrained(DIRECTORY)


@pytest.fixture(scope="module")
def reference() -> NativeReference:
    return NativeReference.from_pretrained(DIRECTORY)


def reference_input(prompt: Prompt, template: Any, reference: NativeReference) -> tuple[list[int], torch.Tensor | None]:
    """Token ids with expanded placeholders, and pixel values [num_images, 3, S, S]."""
    vision = reference.config.vision_config
    assert vision is not None
    text = prompt["prompt"].replace(IMAGE, IMAGE * vision.num_image_tokens)
    images = prompt.get("multi_modal_data", {}).get("image", [])
    pixels = torch.stack([torch.from_numpy(preprocess(i, vision.image_size)) for i in images]) if images else None
    return template(text, add_special_tokens=False)["input_ids"], pixels


@pytest.fixture(scope="module")
def prompts(template: Any) -> list[Prompt]:
    """Conversations of one to six turns about drawn pictures and digits, some without picture, some with a system
    prompt."""
    _, digits = load_split()
    made: list[Prompt] = []
    for seed in range(NUM_PROMPTS):
        conversation = random_conversation(random.Random(10**13 + seed), digits)
        if seed % 4 == 0:
            conversation = _without_pictures(conversation)
        images = [picture.image for picture in conversation.pictures()]
        text = template.apply_chat_template(conversation.messages(), add_generation_prompt=True, tokenize=False)
        made.append({"prompt": text, "multi_modal_data": {"image": images}} if images else {"prompt": text})
    assert 50 < sum("multi_modal_data" not in prompt for prompt in made) < NUM_PROMPTS - 100
    return made


def _without_pictures(conversation: Conversation) -> Conversation:
    return replace(conversation, turns=tuple(replace(turn, picture=None) for turn in conversation.turns))


@pytest.fixture(scope="module")
def expected(prompts: list[Prompt]) -> Tokens:
    """Whole prompts, one at a time, no cache."""
    llm = engine(max_num_seqs=1, enable_prefix_caching=False)
    return tokens(llm.generate(prompts, GREEDY, use_tqdm=False))


def test_whole_prompts_equal_the_reference(
    prompts: list[Prompt], expected: Tokens, template: Any, reference: NativeReference
) -> None:
    different = []
    for index, (prompt, output) in enumerate(zip(prompts, expected, strict=True)):
        ids, pixels = reference_input(prompt, template, reference)
        with torch.no_grad():
            logits = reference(torch.tensor([ids + list(output)]), pixels)[0]
        if tuple(logits[len(ids) - 1 : -1].argmax(dim=-1).tolist()) != output:
            different.append(index)
    assert not different, f"{len(different)} of {len(prompts)} differ: {different}"
    assert all(len(output) == MAX_TOKENS for output in expected)


def test_reference_generation_gives_the_same(
    prompts: list[Prompt], expected: Tokens, template: Any, reference: NativeReference
) -> None:
    """The same comparison the other way round, for a few prompts: the reference generates on its own."""
    for index in range(0, NUM_PROMPTS, 26):
        ids, pixels = reference_input(prompts[index], template, reference)
        never = reference.config.vocab_size
        assert tuple(reference.generate(ids, pixels, MAX_TOKENS, never)) == expected[index]


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks(prompts: list[Prompt], expected: Tokens, chunk: int) -> None:
    llm = engine(long_prefill_token_threshold=chunk, max_num_batched_tokens=32 * max(chunk, 8))
    assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected


@pytest.mark.parametrize("composition", ["decode-first", "prefill-first"])
@pytest.mark.parametrize("block_size", [16, 5])
def test_mixed_batches(prompts: list[Prompt], expected: Tokens, composition: str, block_size: int) -> None:
    llm = engine(composition=composition, block_size=block_size, max_num_batched_tokens=300)
    assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected


@pytest.mark.parametrize("composition", ["decode-first", "prefill-first"])
def test_second_sighting(prompts: list[Prompt], expected: Tokens, composition: str) -> None:
    """Everything hits up to the last resume point of the prompt: all but its last token."""
    llm = engine(composition=composition, num_state_slots=4000, num_window_blocks=12000, num_full_blocks=6000)
    assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
    again = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert tokens(again) == expected
    for output in again:
        assert output.num_cached_tokens == len(output.prompt_token_ids) - 1
    stats = llm.stats()
    assert stats.hit_tokens >= sum(len(output.prompt_token_ids) - 1 for output in again)


def test_pool_so_small_that_retraction_happens(prompts: list[Prompt], expected: Tokens) -> None:
    llm = engine(
        max_num_seqs=8,
        max_model_len=512,
        num_full_blocks=40,
        num_state_slots=10,
        block_size=16,
        initial_output_ratio=0.0,
    )
    assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
    stats = llm.stats()
    assert stats.retractions > 0
    assert stats.recomputed_tokens > 0


@pytest.mark.parametrize("plans", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
def test_retraction_forced_every_third_step(prompts: list[Prompt], expected: Tokens, plans: int, caching: bool) -> None:
    llm = engine(max_num_seqs=6, force_retraction_every=3, max_plans_in_flight=plans, enable_prefix_caching=caching)
    assert tokens(llm.generate(prompts[::2], GREEDY, use_tqdm=False)) == expected[::2]
    assert llm.stats().retractions > 50


def test_two_samples_share_the_prompt(prompts: list[Prompt], expected: Tokens) -> None:
    llm = engine(num_state_slots=2000)
    two = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, n=2)
    outputs = llm.generate(prompts, two, use_tqdm=False)
    assert tokens(outputs) == [output for output in expected for _ in range(2)]
    shared = sum(len(output.prompt_token_ids) - 1 for output in outputs)
    assert llm.stats().hit_tokens >= shared


@pytest.mark.parametrize("composition", ["decode-first", "prefill-first"])
def test_two_plans_in_flight(prompts: list[Prompt], expected: Tokens, composition: str) -> None:
    """The result of a plan is committed only after the next plan was made and executed."""
    llm = engine(max_plans_in_flight=2, composition=composition, max_num_batched_tokens=300)
    assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected


def test_stopping_at_the_end_token(prompts: list[Prompt], expected: Tokens) -> None:
    """With eos respected the output is the same up to the first eos, also with results that arrive late."""
    stopping = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    eos = 2
    cut = [output[: output.index(eos) + 1] if eos in output else output for output in expected]
    for plans in (1, 2):
        llm = engine(max_plans_in_flight=plans)
        assert tokens(llm.generate(prompts, stopping, use_tqdm=False)) == cut


@pytest.mark.parametrize("plans", [1, 2])
def test_conversation_hits_up_to_its_resume_points(plans: int) -> None:
    """A shared system prompt hits on its second sighting up to its end, the next turn up to the end of the last
    answer."""
    llm = engine(max_plans_in_flight=plans)
    greedy = SamplingParams(temperature=0, max_tokens=16)
    system = {"role": "system", "content": "You are a helpful assistant that looks at pictures and answers."}
    picture = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(picture).ellipse((8, 20, 30, 42), fill="red")
    image = {"type": "image", "image": picture}
    first = [system, {"role": "user", "content": "Hello"}]
    hello = llm.chat(first, greedy, use_tqdm=False)[0]
    assert hello.num_cached_tokens == 0
    question = [system, {"role": "user", "content": [image, {"type": "text", "text": "What colour is the circle?"}]}]
    asked = llm.chat(question, greedy, use_tqdm=False)[0]
    shared = llm.chat([system, {"role": "user", "content": "Bye"}], greedy, use_tqdm=False)[0]
    common = 0
    for left, right in zip(hello.prompt_token_ids, asked.prompt_token_ids, strict=False):
        if left != right:
            break
        common += 1
    head = common_head(hello.prompt_token_ids)
    assert head <= common
    assert asked.num_cached_tokens >= head > 10
    assert shared.num_cached_tokens >= head
    answer = asked.outputs[0]
    turn = [*question, {"role": "assistant", "content": answer.text}, {"role": "user", "content": "And where is it?"}]
    followed = llm.chat(turn, greedy, use_tqdm=False)[0]
    assert answer.finish_reason == "stop"
    history = len(asked.prompt_token_ids) + len(answer.token_ids)
    assert list(followed.prompt_token_ids[:history]) == [*asked.prompt_token_ids, *answer.token_ids]
    # synchronously the end token itself was sampled but never computed; with late results the next plan computed it
    assert followed.num_cached_tokens == history - (1 if plans == 1 else 0)


def common_head(prompt: Sequence[int], end_of_message: int = 2) -> int:
    """Tokens up to and including the first end of message."""
    return list(prompt).index(end_of_message) + 1
