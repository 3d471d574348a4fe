"""Tool calls through the official client. The bundled model knows no tools: a choice of one text makes it write calls
of its own accord, as far as the server can tell."""

import json
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from hybrid import LLM, SamplingParams
from hybrid.checkpoints import find_checkpoint
from hybrid.engine_args import EngineArgs
from tests.server.serving import serving

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "clock"}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
ROME = '{"city": "Rome", "days": 3}'
CALL = f'<tool_call>{{"name": "weather", "arguments": {ROME}}}</tool_call>'
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How is the weather in Rome?"}]


def saying(text: str) -> dict[str, Any]:
    return {"structured_outputs": {"choice": [text]}}


def ask(client: OpenAI, **fields: Any) -> Any:
    create: Any = client.chat.completions.create
    return create(**{"model": "tiny", "messages": QUESTION, "tools": TOOLS, **fields})


def answered(client: OpenAI, stream: bool, **fields: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    """Content, calls and finish_reason of one answer; of a stream put together as clients do."""
    if not stream:
        [choice] = ask(client, **fields).choices
        found = choice.message.tool_calls or []
        assert all(call.type == "function" for call in found) and len({call.id for call in found}) == len(found)
        calls = [(call.function.name, call.function.arguments) for call in found]
        return choice.message.content, calls, choice.finish_reason
    content, reason = "", None
    parts: dict[int, list[str]] = {}
    for chunk in ask(client, stream=True, **fields):
        [choice] = chunk.choices
        assert reason is None, "something came after the end"
        content, reason = content + (choice.delta.content or ""), choice.finish_reason
        for call in choice.delta.tool_calls or ():
            if call.index not in parts:
                assert call.id and call.type == "function"
                parts[call.index] = [call.function.name, ""]
            parts[call.index][1] += call.function.arguments or ""
    assert reason is not None and sorted(parts) == list(range(len(parts)))
    return content or None, [(name, arguments) for name, arguments in parts.values()], reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "content", "calls"),
    [
        ("It rains.", "It rains.", []),
        (CALL, None, [("weather", ROME)]),
        (f"Well.{CALL}{CALL}", "Well.", [("weather", ROME), ("weather", ROME)]),
        ('{"name": "clock", "parameters": {}}', None, [("clock", "{}")]),
        ('{"name": "nobody"}', '{"name": "nobody"}', []),
    ],
)
def test_calls_that_the_model_chose(
    client: OpenAI, said: str, content: str | None, calls: list[tuple[str, str]], stream: bool
) -> None:
    reason = "tool_calls" if calls else "stop"
    assert answered(client, stream, extra_body=saying(said)) == (content, calls, reason)


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_where_they_may_not_be_parallel(client: OpenAI, stream: bool) -> None:
    answer = answered(client, stream, parallel_tool_calls=False, extra_body=saying(CALL + CALL))
    assert answer == (None, [("weather", ROME)], "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_none_leaves_the_text_as_it_is(client: OpenAI, stream: bool) -> None:
    assert answered(client, stream, tool_choice="none", extra_body=saying(CALL)) == (CALL, [], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_call_is_forced(client: OpenAI, stream: bool) -> None:
    for seed in range(3):
        content, [(name, arguments)], reason = answered(client, stream, tool_choice=NAMED, temperature=1, seed=seed)
        assert (content, name, reason) == (None, "weather", "stop")
        jsonschema.validate(json.loads(arguments), PARAMETERS)
    chunks = list(ask(client, tool_choice=NAMED, stream=True))
    assert sum(bool(chunk.choices[0].delta.tool_calls) for chunk in chunks) > 3  # arguments come as they are written


@pytest.mark.parametrize("stream", [False, True])
def test_some_call_is_required(client: OpenAI, stream: bool) -> None:
    for seed in range(4):
        content, [(name, arguments)], reason = answered(
            client, stream, tool_choice="required", parallel_tool_calls=False, temperature=1, seed=seed
        )
        assert (content, reason) == (None, "tool_calls")
        if name == "weather":
            jsonschema.validate(json.loads(arguments), PARAMETERS)
        else:
            assert (name, json.loads(arguments)) == ("clock", {})


def test_every_one_of_n_answers_has_its_calls(client: OpenAI) -> None:
    choices = ask(client, tool_choice=NAMED, n=3, temperature=1).choices
    calls = [call for choice in choices for call in choice.message.tool_calls]
    assert len(calls) == len({call.id for call in calls}) == 3
    chunks = list(ask(client, tool_choice=NAMED, n=3, temperature=1, stream=True))
    found = [
        (chunk.choices[0].index, call.index) for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()
    ]
    assert set(found) == {(0, 0), (1, 0), (2, 0)}


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_are_cut_at_the_length(client: OpenAI, stream: bool) -> None:
    content, [(name, arguments)], reason = answered(client, stream, tool_choice=NAMED, max_tokens=2)
    assert (content, name, reason) == (None, "weather", "length")
    assert arguments.startswith("{") and not arguments.endswith("}")


def test_logprobs_of_text_that_became_a_call(client: OpenAI) -> None:
    whole = ask(client, logprobs=True, extra_body=saying(CALL)).choices[0].logprobs.content
    assert bytes(byte for entry in whole for byte in entry.bytes).decode().startswith(CALL)
    parts = [chunk.choices[0].logprobs for chunk in ask(client, logprobs=True, extra_body=saying(CALL), stream=True)]
    assert [entry for part in parts if part for entry in part.content] == whole


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_a_form_is_no_call(client: OpenAI, stream: bool) -> None:
    schema = {"type": "object", "properties": {"name": {"const": "clock"}}, "required": ["name"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**schema, "additionalProperties": False}}}
    content, calls, reason = answered(client, stream, response_format=form)
    assert json.loads(content or "") == {"name": "clock"} and (calls, reason) == ([], "stop")


def test_the_conversation_goes_on_with_what_the_tool_said(client: OpenAI) -> None:
    first = ask(client, tool_choice=NAMED)
    message = first.choices[0].message
    said = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny."}
    answer = ask(client, messages=[*QUESTION, message, said], max_tokens=3)
    assert answer.usage.prompt_tokens > first.usage.prompt_tokens


DEEP: Any = {}
for _ in range(400):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"tools": [{"type": "search"}]}, "tools", "tool 0 must be"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools", "two tools have one name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "perhaps"}, "tool_choice", "got 'perhaps'"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice", "names 'nobody'"),
        (
            {"tool_choice": NAMED, "response_format": {"type": "json_object"}},
            None,
            "only one of response_format, tool_choice",
        ),
        ({"tool_choice": "required", "extra_body": saying("x")}, None, "only one of structured_outputs, tool_choice"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}], "tool_choice": "required"},
            None,
            "nested",
        ),
        ({"extra_body": {"functions": [{"name": "f"}]}}, "functions", "not supported"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be(client: OpenAI, change: dict[str, Any], param: str | None, said: str, stream: bool) -> None:
    with pytest.raises(BadRequestError, match=said) as caught:
        ask(client, stream=stream, **change)
    assert caught.value.param == param


def test_a_template_that_knows_tools(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is told of the tools, and sees arguments of calls as mappings."""
    folder = tmp_path_factory.mktemp("tools")
    for file in find_checkpoint("tiny").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = (
        "{% if tools %}{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% endif %}"
        "{% for message in messages %}{{ message.role }}: {{ message.content }}"
        "{% for call in message.tool_calls or [] %}"
        "{% for key, value in call.function.arguments.items() %}({{ key }} is {{ value }}){% endfor %}{% endfor %}"
        "{% endfor %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ROME}}
    messages: list[Any] = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "content": "Sunny.", "tool_call_id": "call_1"})
    with serving(EngineArgs(model=folder, memory="64MiB", max_num_seqs=2, num_threads=1)) as running:
        tokens = running.http.post("/tokenize", json={"messages": messages, "tools": TOOLS}).json()["tokens"]
        text = running.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        body = {"messages": messages, "tools": TOOLS, "max_tokens": 1}
        usage = running.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert text == ("[weather][clock]user: How is the weather in Rome?assistant: (city is Rome)(days is 3)tool: Sunny.")
    assert usage["prompt_tokens"] == len(tokens)
    llm = LLM(folder, memory="64MiB", max_num_seqs=2, num_threads=1)
    [output] = llm.chat(messages, SamplingParams(max_tokens=1), tools=TOOLS, use_tqdm=False)
    assert output.prompt == text
