"""Answers that must follow something, through the official client, and what a client is told that asks for too much."""

import json
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.server.serving import Running

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello, who are you?"}]


class Point(BaseModel):
    x: int = Field(ge=0, le=9)
    colour: str = Field(pattern="^(red|blue)$")


class Shape(BaseModel):
    points: list[Point] = Field(min_length=1, max_length=2)
    closed: bool | None


@pytest.fixture(scope="module")
def client(server: Running) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def schema_format(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def test_parse(client: OpenAI) -> None:
    for seed in range(4):
        answer = client.chat.completions.parse(
            model="tiny", messages=QUESTION, response_format=Shape, temperature=1.0, max_tokens=400, seed=seed
        )
        shape = answer.choices[0].message.parsed
        assert shape is not None and 1 <= len(shape.points) <= 2
        assert answer.choices[0].finish_reason == "stop"


def test_a_schema_while_it_streams(client: OpenAI) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 4}
    chunks = client.chat.completions.create(
        model="tiny", messages=QUESTION, response_format=schema_format(schema), max_tokens=300, stream=True
    )
    jsonschema.validate(json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks)), schema)


@pytest.mark.parametrize(
    ("structured_outputs", "answers"),
    [({"choice": ["yes", "no"]}, {"yes", "no"}), ({"regex": "[ab]"}, {"a", "b"}), ({"grammar": 'start: "c"'}, {"c"})],
)
def test_other_kinds(client: OpenAI, structured_outputs: dict[str, Any], answers: set[str]) -> None:
    answer = client.completions.create(
        model="tiny", prompt="Well,", extra_body={"structured_outputs": structured_outputs}, temperature=1.0
    )
    assert answer.choices[0].text in answers


def test_json_in_one_line_whatever_field_says_what_it_follows(client: OpenAI) -> None:
    one_line = {"structured_outputs": {"disable_any_whitespace": True}}
    answer = client.chat.completions.parse(
        model="tiny", messages=QUESTION, response_format=Shape, temperature=1.0, max_tokens=400, extra_body=one_line
    )
    text = answer.choices[0].message.content
    assert text == json.dumps(json.loads(text or ""), ensure_ascii=False)
    for extra in (one_line, {"structured_outputs": {"disable_any_whitespace": 1}, "guided_json": {}}):
        with pytest.raises(BadRequestError, match="cannot be followed"):
            client.completions.create(model="tiny", prompt="Well,", extra_body=extra)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"response_format": schema_format({"uniqueItems": True})}, "'uniqueItems'"),
        ({"response_format": schema_format({"oneOf": [{}, {"type": "null"}]})}, "oneOf"),
        ({"extra_body": {"structured_outputs": {"regex": "a("}}}, "unclosed group"),
    ],
)
def test_what_cannot_be_followed_is_a_400(client: OpenAI, asked: dict[str, Any], said: str, stream: bool) -> None:
    for _ in range(2):  # nothing is remembered, and nothing is broken
        with pytest.raises(BadRequestError) as caught:
            for _ in client.chat.completions.create(model="tiny", messages=QUESTION, stream=stream, **asked):
                pass
        assert said in str(caught.value)
    assert client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=3).choices
