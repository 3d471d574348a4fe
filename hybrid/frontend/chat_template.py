"""ChatTemplate: messages -> text, by a Jinja template as checkpoints bring them, compiled in a sandbox.

Offers what transformers offers to templates (`chat_template_utils.py`): `tojson`, `raise_exception`, `strftime_now`,
`{% generation %}` blocks, `break` and `continue`, and `tools` and `documents` that are there but None. One that reads
parts only (LLaVA, SmolVLM) gets the text of a message as a part. A template comes with a checkpoint, from anybody: one
that would never end is refused.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from hybrid.models.blueprint.config_reader import one_line

MAX_ROUNDS = 250_000  # through all loops and macros of one rendering: a few seconds
MAX_LENGTH = 1_000_000  # of a text or list that is repeated
MAX_BITS = 4096  # of a number
_COUNT = "_count_round"
_PROBE = "What do you see?"


class ChatTemplate:
    """One template. Nothing changes after construction."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: texts by name (`bos_token`, ...). Raises ValueError, `cannot be compiled: ...`."""
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        self._special_tokens = dict(special_tokens)
        try:
            tree = environment.parse(source)
            loops: list[jinja2.nodes.For | jinja2.nodes.Macro] = [
                *tree.find_all(jinja2.nodes.For),
                *tree.find_all(jinja2.nodes.Macro),
            ]
            for node in loops:
                count = jinja2.nodes.Call(jinja2.nodes.Name(_COUNT, "load"), [], [], None, None)
                node.body.insert(0, jinja2.nodes.ExprStmt(count).set_lineno(node.lineno))
            self._template = environment.from_string(tree)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ValueError(f"cannot be compiled: {one_line(error)}") from None
        self._parts_only = not self._shows(_PROBE) and self._shows(_text_part(_PROBE))

    def _shows(self, content: Any) -> bool:
        """Whether `_PROBE` can be read in what the template makes of a message with this content."""
        try:
            return _PROBE in self._render([{"role": "user", "content": content}], True, {})
        except ValueError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The conversation as one text. `more`: further variables for the template. Raises ValueError when one of them
        has another meaning already, or the template refuses the messages."""
        for name in ("messages", "add_generation_prompt", *self._special_tokens):
            if name in more:
                raise ValueError(f"{name!r} is set already and cannot be a variable for the chat template")
        if self._parts_only:  # of a string they would show nothing, and not say so
            messages = [
                {**message, "content": _text_part(message["content"])}
                if isinstance(message.get("content"), str)
                else message
                for message in messages
            ]
        return self._render(messages, add_generation_prompt, more)

    def _render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, more: Mapping[str, Any]
    ) -> str:
        rounds = iter(range(MAX_ROUNDS))

        def count() -> None:
            if next(rounds, None) is None:
                raise jinja2.TemplateError(f"it goes through its loops more than {MAX_ROUNDS:,} times")

        variables = {"tools": None, "documents": None, **self._special_tokens, **more}
        try:
            return self._template.render(
                {**variables, "messages": messages, "add_generation_prompt": add_generation_prompt, _COUNT: count}
            )
        except Exception as error:  # a template computes, and so can fail in any way
            raise ValueError(f"the chat template refuses these messages: {one_line(error)}") from None


def _text_part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Refuses what takes any time or memory to compute: sandboxes of jinja2 bound `range` only."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        for value, times in ((left, right), (right, left)):
            repeats = operator == "*" and isinstance(value, Sequence) and isinstance(times, int)
            if repeats and len(value) * times > MAX_LENGTH:
                raise jinja2.TemplateError(f"it repeats a text or list {times} times")
        powers = operator == "**" and isinstance(left, int) and isinstance(right, int)
        if powers and left.bit_length() * right > MAX_BITS:
            raise jinja2.TemplateError(f"it computes {left} to the power of {right}")
        return super().call_binop(context, operator, left, right)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
