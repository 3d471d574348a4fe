"""The official client against a real server."""

import asyncio
import base64
import io

import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from PIL import Image

from hybrid import LLM, SamplingParams
from tests.server.serving import Running

PROMPT = "<|im_start|>user\nHello, who are you?<|im_end|>\n<|im_start|>assistant\n"
GO_ON = {"ignore_eos": True}
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello, who are you?"}]


@pytest.fixture(scope="module")
def client(server: Running) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", max_num_seqs=16, memory="64MiB", num_threads=1)


def test_chat_says_what_llm_says(client: OpenAI, llm: LLM) -> None:
    [expected] = llm.chat(QUESTION, use_tqdm=False)
    answer = client.chat.completions.create(model="tiny", messages=QUESTION)
    [choice] = answer.choices
    assert choice.message.content == expected.outputs[0].text != ""
    assert choice.message.role == "assistant"
    assert choice.finish_reason == expected.outputs[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion" and answer.model == "tiny"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == len(expected.outputs[0].token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_prompt_seen_before_counts_as_cached(client: OpenAI) -> None:
    for _ in range(2):
        answer = client.completions.create(model="tiny", prompt="the same prompt, asked twice", max_tokens=1)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_a_stream_joined_is_the_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=QUESTION, max_completion_tokens=12)
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=QUESTION,
            max_completion_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *parts, last = chunks
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert len(parts) > 5
    assert parts[0].choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(part.usage is None for part in parts)
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_in_every_event(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert counts == sorted(counts) and counts[-1] == 5 and len(counts) > 3


def test_async_client_with_many_requests(server: Running) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.completions.create(model="tiny", prompt=f"{i} and", max_tokens=4) for i in range(24))
            )
            stream = await client.completions.create(model="tiny", prompt="0 and", max_tokens=4, stream=True)
            streamed = "".join([chunk.choices[0].text async for chunk in stream])
            return [*(answer.choices[0].text for answer in answers), streamed]

    texts = asyncio.run(ask())
    assert texts[0] == texts[-1]
    assert all(texts)


def test_n_answers_that_seeds_repeat(client: OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        answer = client.completions.create(
            model="tiny", prompt="Once", n=2, seed=seed, temperature=2.0, max_tokens=12, extra_body=GO_ON
        )
        assert [choice.index for choice in answer.choices] == [0, 1]
        return [choice.text for choice in answer.choices]

    first = ask(1)
    assert first == ask(1)
    assert first[0] != first[1]
    assert first != ask(2)


def test_several_prompts_of_every_kind(client: OpenAI, llm: LLM) -> None:
    token_ids = [llm.get_tokenizer().encode(text).token_ids.tolist() for text in ("The sky", "Water")]
    one = client.completions.create(
        model="tiny", prompt=["The sky", "Water"], max_tokens=5, n=2, temperature=0, extra_body=GO_ON
    )
    two = client.completions.create(model="tiny", prompt=token_ids, max_tokens=5, temperature=0, extra_body=GO_ON)
    three = client.completions.create(model="tiny", prompt=token_ids[1], max_tokens=5, temperature=0, extra_body=GO_ON)
    assert [choice.index for choice in one.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in one.choices]
    assert texts[0] == texts[1] == two.choices[0].text
    assert texts[2] == texts[3] == two.choices[1].text == three.choices[0].text
    assert one.usage is not None and one.usage.completion_tokens == 20


def test_chat_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=4, logprobs=True, top_logprobs=3
    )
    [choice] = answer.choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    entries = choice.logprobs.content
    assert len(entries) == 4
    assert b"".join(bytes(entry.bytes or ()) for entry in entries).decode() == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        ordered = [top.logprob for top in entry.top_logprobs]
        assert ordered == sorted(ordered, reverse=True) and ordered[0] <= 0


def test_completion_logprobs_whole_and_streamed(client: OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, logprobs=2).choices[0]
    assert whole.logprobs is not None
    tokens, offsets = whole.logprobs.tokens, whole.logprobs.text_offset
    assert tokens is not None and offsets is not None
    assert "".join(tokens) == whole.text
    assert offsets == [len("".join(tokens[:i])) for i in range(4)]
    assert whole.logprobs.top_logprobs is not None and whole.logprobs.token_logprobs is not None
    assert [top[token] for top, token in zip(whole.logprobs.top_logprobs, tokens)] == whole.logprobs.token_logprobs
    chunks = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, logprobs=2, stream=True)
    parts = [part.choices[0].logprobs for part in chunks]
    assert [offset for part in parts if part is not None for offset in part.text_offset or ()] == offsets
    assert [token for part in parts if part is not None for token in part.tokens or ()] == tokens


def test_stop_strings_and_tokens(client: OpenAI, llm: LLM) -> None:
    [output] = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    text, token_ids = output.outputs[0].text, output.outputs[0].token_ids
    middle = text[len(text) // 2 : len(text) // 2 + 3]
    stopped = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, stop=[middle], temperature=0)
    assert stopped.choices[0].text == text[: text.index(middle)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].model_extra is not None and stopped.choices[0].model_extra["stop_reason"] == middle
    by_token = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=12, temperature=0, extra_body={"stop_token_ids": [token_ids[2]]}
    )
    assert by_token.usage is not None and by_token.usage.completion_tokens <= 3
    assert by_token.choices[0].finish_reason == "stop"


def test_logit_bias_and_echo(client: OpenAI, llm: LLM) -> None:
    token_id = int(llm.get_tokenizer().encode(" sun", add_special_tokens=False).token_ids[-1])
    answer = client.completions.create(
        model="tiny", prompt="The", max_tokens=3, echo=True, logit_bias={str(token_id): 100}, temperature=0
    )
    assert answer.choices[0].text == "The" + llm.get_tokenizer().decode([token_id] * 3)


def test_a_picture_in_a_data_url(client: OpenAI, llm: LLM) -> None:
    picture = Image.fromarray(np.full((48, 48, 3), (220, 30, 30), dtype=np.uint8))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    question = "What colour is it?"
    [expected] = llm.chat(
        [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": question}]}],
        use_tqdm=False,
    )
    messages: list[ChatCompletionMessageParam] = [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}],
        }
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages)
    assert answer.choices[0].message.content == expected.outputs[0].text
    assert answer.usage is not None and answer.usage.prompt_tokens == len(expected.prompt_token_ids)


@pytest.mark.parametrize("url", ["/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/x.png", "data:,nothing"])
def test_other_pictures_are_refused(client: OpenAI, url: str) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    ]
    with pytest.raises(BadRequestError):
        client.chat.completions.create(model="tiny", messages=messages)


def test_going_on_with_the_last_message(client: OpenAI, llm: LLM) -> None:
    whole = client.chat.completions.create(model="tiny", messages=QUESTION).choices[0].message.content
    assert whole is not None
    begun = whole[: whole.index(" ") + 1]
    messages: list[ChatCompletionMessageParam] = [*QUESTION, {"role": "assistant", "content": begun.rstrip()}]
    rest = client.chat.completions.create(
        model="tiny",
        messages=messages,
        extra_body={"add_generation_prompt": False, "continue_final_message": True},
    )
    assert begun.rstrip() + (rest.choices[0].message.content or "") == whole


def test_models_and_an_unknown_one(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "also-tiny"]
    assert client.chat.completions.create(model="also-tiny", messages=QUESTION, max_tokens=1).model == "also-tiny"
    with pytest.raises(NotFoundError) as caught:
        client.chat.completions.create(model="no-such", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert client.models.retrieve("also-tiny").id == "also-tiny"
    with pytest.raises(NotFoundError, match="the model 'a/b' does not exist"):
        client.models.retrieve("a/b")
