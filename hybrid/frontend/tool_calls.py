"""Tool calls: the tools that a chat offers, the form that forces a call, and the calls in what a model wrote.

Models write calls as Hermes and Qwen do, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, or as Llama 3
does, as the JSON object alone ("parameters" for "arguments"). A forced call is JSON by its grammar. Knows no HTTP.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from hybrid.structured_outputs import StructuredOutputsParams

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CALLS = 16  # of a list that is forced, or one for each tool: a small model would go on to the end of its context
Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is JSON text, as the OpenAI API has it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a piece of output brought: text for the user, calls, and more arguments of a call that came before.

    Calls are complete, except the one of a named tool: it comes at once, and its arguments as they are written.
    """

    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    more_arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools of one chat, and whether and which must be called. `rendered` goes to the chat template."""

    tools: tuple[Tool, ...] = ()
    rendered: tuple[Mapping[str, Any], ...] = ()
    mode: Mode = "none"
    name: str | None = None  # of the one that must be called
    parallel: bool = True  # whether one answer may hold several calls

    @property
    def forced(self) -> bool:
        """Whether the output is nothing but calls."""
        return self.mode in ("required", "named")

    def variables(self, others: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """For the chat template, besides `others`."""
        return {**(others or {}), **({"tools": list(self.rendered)} if self.rendered else {})}

    def structured_outputs(self) -> StructuredOutputsParams | None:
        """What forces the call: a named tool's arguments, or for "required" a list of one call or more, of exactly one
        where they may not be parallel. In one line: a small model may spend its tokens on indenting. Raises ValueError
        for parameters that are no JSON schema."""
        if self.mode == "named":
            [tool] = (tool for tool in self.tools if tool.name == self.name)
            return StructuredOutputsParams(json=tool.parameters, disable_any_whitespace=True)
        if self.mode != "required":
            return None
        names = {f"tool{i}": tool for i, tool in enumerate(self.tools)}
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/{name}"}},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for name, tool in names.items()
        ]
        most = max(MAX_CALLS, len(calls)) if self.parallel else 1
        schema: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": most, "items": {"anyOf": calls}}
        try:
            schema["$defs"] = {name: _moved(tool.parameters, f"#/$defs/{name}") for name, tool in names.items()}
        except RecursionError:
            raise ValueError("the parameters of the tools are nested too deep") from None
        return StructuredOutputsParams(json=schema, disable_any_whitespace=True)

    def parser(self) -> "ToolCallParser":
        """For one sequence of this chat's output."""
        return ToolCallParser(self)


def read_tools(tools: object, tool_choice: object = None, parallel: bool = True) -> ToolChoice:
    """`tools`, `tool_choice` and `parallel_tool_calls` of the OpenAI API. Raises ValueError naming what is not as it
    should be."""
    if tools is None or tools == []:
        if tool_choice in (None, "none", "auto"):
            return ToolChoice()
        raise ValueError(f"tool_choice {tool_choice!r} needs tools, and there are none")
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise ValueError(f"tools must be a list, got {tools!r}")
    read = tuple(_read_tool(tool, i) for i, tool in enumerate(tools))
    names = [tool.name for tool in read]
    if len(set(names)) < len(names):
        raise ValueError(f"two tools have one name, among {names}")
    rendered = tuple(dict(tool) for tool in tools)
    if tool_choice == "none":  # as in vLLM, the model is not told of tools that it may not call
        return ToolChoice()
    if tool_choice in (None, "auto", "required"):
        return ToolChoice(read, rendered, "required" if tool_choice == "required" else "auto", parallel=parallel)
    name = None
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function":
        function = tool_choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(
            "tool_choice must be 'none', 'auto', 'required' or "
            f'{{"type": "function", "function": {{"name": ...}}}}, got {tool_choice!r}'
        )
    if name not in names:
        raise ValueError(f"tool_choice names {name!r}; the tools are {names}")
    return ToolChoice(read, rendered, "named", name)


class ToolCallParser:
    """Calls out of one sequence's text as it comes: `push` pieces in order, then `finish` once."""

    def __init__(self, choice: ToolChoice) -> None:
        self._choice = choice
        self._held = ""  # text of which it is not known yet what it is
        self._searched = 0  # characters of it at which no closing tag begins: a long call is searched once
        self._first = ""  # character of the output that is no blank
        self._in_call = False
        self._started = False  # some content that is no blank went out
        self.num_calls = 0

    def push(self, text: str) -> Parsed:
        """Mutates. Content that cannot be part of a call any more, and the calls that this piece completed."""
        if self._choice.mode == "named":
            return self._named(text) if text else Parsed()
        if self._choice.mode == "none":
            return Parsed(text)
        self._held += text
        self._first = self._first or text.lstrip()[:1]
        if self._choice.mode == "required" or self._may_be_bare():
            return Parsed()
        content = ""
        calls: list[ToolCall] = []
        while True:
            if not self._in_call:
                before, tag, after = self._held.partition(OPEN)
                if not tag:
                    keep = _overlap(self._held, OPEN)
                    content += self._content(self._held[: len(self._held) - keep])
                    self._held = self._held[len(self._held) - keep :]
                    break
                content += self._content(before)
                self._held, self._in_call = after, True
            end = self._held.find(CLOSE, self._searched)
            if end < 0:
                self._searched = max(0, len(self._held) - len(CLOSE) + 1)
                break
            body = self._held[:end]
            self._held, self._in_call, self._searched = self._held[end + len(CLOSE) :], False, 0
            found = self._read_call(body)
            if found is None:  # what the model wrote there is no call of these tools: the user sees it
                content += self._content(OPEN + body + CLOSE)
            else:
                calls += found
        return Parsed(content, tuple(calls))

    def finish(self) -> Parsed:
        """Mutates. What was held back: a call, or text that only looked like one."""
        if self._choice.mode == "named":
            return self._named("") if self.num_calls == 0 else Parsed()
        held, self._held = self._held, ""
        if not self._in_call:
            calls = self._read_bare(held)
            return Parsed(calls=calls) if calls else Parsed(self._content(held))
        found = self._read_call(held)  # some models end without the closing tag
        return Parsed(self._content(OPEN + held)) if found is None else Parsed(calls=found)

    def _named(self, text: str) -> Parsed:
        """Mutates `num_calls`."""
        assert self._choice.name is not None
        if self.num_calls:
            return Parsed(more_arguments=text)
        return Parsed(calls=(self._new_call(self._choice.name, text),))

    def _may_be_bare(self) -> bool:
        """Whether all that came so far may be the beginning of a JSON object that is a call."""
        return not self._started and self.num_calls == 0 and not self._in_call and self._first in ("", "{")

    def _content(self, text: str) -> str:
        """Mutates. Blanks around calls are no content."""
        if not self._started and not text.strip():
            return ""
        self._started = True
        return text if self.num_calls == 0 or text.strip() else ""

    def _read_bare(self, text: str) -> tuple[ToolCall, ...]:
        """The calls that `text` is as a whole: one JSON object, or a list of them; () if it is something else."""
        try:
            value = _loads(text)
        except (ValueError, RecursionError):
            return ()
        values = value if isinstance(value, list) else [value]
        if not values or not all(self._is_call(one) for one in values):
            return ()
        return tuple(self._new_call(one["name"], _arguments(one)) for one in values)

    def _read_call(self, body: str) -> tuple[ToolCall, ...] | None:
        """Mutates `num_calls`. None for what is no call, () for one more than there may be."""
        try:
            value = _loads(body)
        except (ValueError, RecursionError):
            return None
        if not self._is_call(value):
            return None
        if self.num_calls and not self._choice.parallel:
            return ()
        return (self._new_call(value["name"], _arguments(value)),)

    def _is_call(self, value: object) -> bool:
        return isinstance(value, dict) and any(value.get("name") == tool.name for tool in self._choice.tools)

    def _new_call(self, name: str, arguments: str) -> ToolCall:
        """Mutates `num_calls`."""
        self.num_calls += 1
        return ToolCall(f"call_{uuid4().hex[:24]}", name, arguments)


def _loads(text: str) -> Any:
    """JSON, without the numbers that Python reads and JSON does not have. Raises ValueError and RecursionError."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number in JSON")
    return value


def _arguments(call: Mapping[str, Any]) -> str:
    """As JSON text, under whichever of the two names they stand."""
    value = call.get("arguments", call.get("parameters", {}))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which JSON can hold and UTF-8 cannot
        return json.dumps(value)
    return text


def _overlap(text: str, tag: str) -> int:
    """Most characters at the end of `text` with which `tag` begins."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-n:])), 0)


def _read_tool(tool: object, index: int) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        raise ValueError(f'tool {index} must be {{"type": "function", "function": {{...}}}}, got {tool!r}')
    name, parameters = tool["function"].get("name"), tool["function"].get("parameters")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"tool {index}: 'name' must be a string that can be printed, got {name!r}")
    if parameters is None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"tool {name!r}: 'parameters' must be a JSON schema, got {parameters!r}")
    return Tool(name, parameters)


def _moved(schema: Any, place: str) -> Any:
    """The schema as a part of another one, at `place`: references to its parts lead there (anchors do anyway)."""
    if isinstance(schema, Mapping):
        moved = {key: _moved(one, place) for key, one in schema.items()}
        if isinstance(reference := schema.get("$ref"), str) and (reference == "#" or reference.startswith("#/")):
            moved["$ref"] = place + reference[1:]
        return moved
    return [_moved(one, place) for one in schema] if isinstance(schema, list | tuple) else schema
