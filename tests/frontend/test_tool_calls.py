"""Tool calls: what is read from a request, what is forced, and what is found in text that comes in pieces."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from hybrid.frontend.tool_calls import MAX_CALLS, Parsed, ToolCall, read_tools

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "$defs": {"city": {"type": "string"}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]


def run(text: str, choice: object = "auto", size: int = 3) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls of `text`, pushed in pieces of `size` characters."""
    parser = read_tools(TOOLS, choice).parser()
    parts = [parser.push(text[i : i + size]) for i in range(0, len(text), size)] + [parser.finish()]
    calls: list[ToolCall] = []
    for part in parts:
        if part.more_arguments:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + part.more_arguments)
        calls += part.calls
    assert parser.num_calls == len(calls) == len({call.id for call in calls})
    return "".join(part.content for part in parts), [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("It rains.", "It rains.", []),
        ('{"name": "clock", "arguments": {"a": NaN}}', '{"name": "clock", "arguments": {"a": NaN}}', []),
        (
            '<tool_call>{"name": "clock", "arguments": 1e999}</tool_call>',
            '<tool_call>{"name": "clock", "arguments": 1e999}</tool_call>',
            [],
        ),
        ('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>', "", [("clock", "{}")]),
        (
            'Let me see.\n<tool_call>{"name": "weather", "arguments": {"city": "Genève"}}</tool_call>\n'
            '<tool_call>{"name": "clock"}</tool_call>\n',
            "Let me see.\n",
            [("weather", '{"city": "Genève"}'), ("clock", "{}")],
        ),
        ('{"name": "weather", "parameters": {"city": "Oslo"}}', "", [("weather", '{"city": "Oslo"}')]),
        ('[{"name": "clock"}, {"name": "clock"}]', '[{"name": "clock"}, {"name": "clock"}]', []),
        ('{"name": "nobody"}', '{"name": "nobody"}', []),
        (r'{"name": "clock", "parameters": {"a": "\ud800"}}', "", [("clock", r'{"a": "\ud800"}')]),
        ('{"rain": true', '{"rain": true', []),
        ("a < b <tool", "a < b <tool", []),
        ('<tool_call>{"name": "clock"}', "", [("clock", "{}")]),  # ended before the tag
        ("<tool_call>{no json}</tool_call> sorry", "<tool_call>{no json}</tool_call> sorry", []),
        ('<tool_call>{"name": "clock", "argu', '<tool_call>{"name": "clock", "argu', []),
    ],
)
def test_calls_in_text(text: str, content: str, calls: list[tuple[str, str]], size: int) -> None:
    assert run(text, size=size) == (content, calls)


def test_text_goes_out_as_soon_as_it_is_no_call() -> None:
    parser = read_tools(TOOLS, None).parser()
    assert parser.push("Well <").content == "Well "
    assert parser.push("b").content == "<b"
    done = parser.push('<tool_call>{"name": "clock"}</tool_call>')
    assert [call.name for call in done.calls] == ["clock"]


def test_no_tools_and_none_pass_everything_on() -> None:
    text = '<tool_call>{"name": "clock"}</tool_call>'
    for choice in (read_tools(None, None), read_tools(TOOLS, "none")):
        assert choice.rendered == () and choice.structured_outputs() is None
        parser = choice.parser()
        assert parser.push(text).content == text and parser.finish().content == ""


def test_a_named_call_is_its_arguments() -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    forced = read_tools(TOOLS, choice).structured_outputs()
    assert forced is not None and isinstance(forced.json, str)
    assert json.loads(forced.json) == WEATHER["function"]["parameters"]
    parser = read_tools(TOOLS, choice).parser()
    assert [call.arguments for call in parser.push('{"ci').calls] == ['{"ci']
    assert parser.push('ty"').more_arguments == 'ty"' and parser.num_calls == 1
    assert run("", choice) == ("", [("weather", "")])
    assert run('{"city": "Rome"}', choice) == ("", [("weather", '{"city": "Rome"}')])


def test_required_calls_follow_one_schema() -> None:
    choice = read_tools([*TOOLS, _other_city()], "required")
    forced = choice.structured_outputs()
    assert forced is not None and isinstance(forced.json, str)
    schema = json.loads(forced.json)
    jsonschema.Draft202012Validator.check_schema(schema)
    valid = [{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "town", "parameters": {"city": 3}}]
    jsonschema.validate(valid, schema)
    for wrong in ([], [{"name": "town", "parameters": {"city": "Rome"}}], [{"name": "x", "parameters": {}}]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    parser = choice.parser()
    assert parser.push(json.dumps(valid)) == Parsed()
    calls = [(call.name, call.arguments) for call in parser.finish().calls]
    assert calls == [("weather", '{"city": "Rome"}'), ("town", '{"city": 3}')]


@pytest.mark.parametrize(
    ("num_tools", "parallel", "most"), [(1, True, MAX_CALLS), (40, True, 40), (1, False, 1), (40, False, 1)]
)
def test_required_calls_come_to_an_end(num_tools: int, parallel: bool, most: int) -> None:
    tools = [{"type": "function", "function": {"name": f"clock{index}"}} for index in range(num_tools)]
    forced = read_tools(tools, "required", parallel).structured_outputs()
    assert forced is not None and isinstance(forced.json, str)
    schema, call = json.loads(forced.json), {"name": "clock0", "parameters": {}}
    for number in (1, most):
        jsonschema.validate([call] * number, schema)
    for number in (0, most + 1):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([call] * number, schema)


def test_a_schema_that_refers_to_itself_stays_right_among_others() -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {
            "left": {"$ref": "#"},
            "value": {"type": "integer"},
            "copy": {"$ref": "#/properties/value"},
            "named": {"$ref": "#digit"},
        },
        "$defs": {"digit": {"$anchor": "digit", "type": "integer"}},
        "additionalProperties": False,
    }
    tools = [*TOOLS, {"type": "function", "function": {"name": "plant", "parameters": tree}}]
    forced = read_tools(tools, "required").structured_outputs()
    assert forced is not None and isinstance(forced.json, str)
    for parameters, right in (
        ({"left": {"value": 3, "copy": 4, "named": 5}}, True),
        ({"left": {"copy": "x"}}, False),
        ({"left": {"named": "x"}}, False),
    ):
        validator = jsonschema.Draft202012Validator(json.loads(forced.json))
        assert validator.is_valid([{"name": "plant", "parameters": parameters}]) == right


def test_at_most_one_call_where_they_may_not_be_parallel() -> None:
    required = read_tools(TOOLS, "required", parallel=False).structured_outputs()
    assert required is not None and isinstance(required.json, str) and json.loads(required.json)["maxItems"] == 1
    text = '<tool_call>{"name": "clock"}</tool_call>'
    for more in (text, text.removesuffix("</tool_call>")):
        parser = read_tools(TOOLS, "auto", parallel=False).parser()
        parts = [parser.push(text), parser.push(more), parser.finish()]
        assert [len(part.calls) for part in parts] == [1, 0, 0] and not any(part.content for part in parts)


def test_parameters_nested_without_end() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"items": deep}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": deep}}], choice)
        with pytest.raises(ValueError, match=r"nested too deep|is no JSON"):
            tools.structured_outputs()


def _other_city() -> dict[str, object]:
    """A tool whose definition has the name of another tool's."""
    properties = {"city": {"$ref": "#/$defs/city"}}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": ["city"],
        "$defs": {"city": {"type": "integer"}},
    }
    return {"type": "function", "function": {"name": "town", "parameters": parameters}}


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        ("x", None, "must be a list"),
        ([{}], None, "tool 0 must be"),
        ([{"type": "function", "function": {}}], None, "'name' must be a string that can be printed, got None"),
        ([{"type": "function", "function": {"name": "\ud800"}}], None, "that can be printed"),
        ([{"type": "function", "function": {"name": "f", "parameters": 3}}], None, "must be a JSON schema, got 3"),
        ([CLOCK, CLOCK], None, "two tools have one name"),
        ([CLOCK], "clock", "got 'clock'"),
        ([CLOCK], {"type": "function", "function": {"name": "x"}}, r"names 'x'; the tools are \['clock'\]"),
        (None, "required", "needs tools"),
    ],
)
def test_what_is_wrong_is_named(tools: object, choice: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_tools(tools, choice)
