"""ChatTemplate: messages -> text, by a Jinja template as checkpoints bring them, compiled in a sandbox.

Offers what transformers offers to templates (`chat_template_utils.py`): `tojson`, `raise_exception`, `strftime_now`,
`{% generation %}` blocks, `break` and `continue`, and `tools` and `documents` that are there but None.
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
import jinja2.sandbox


class ChatTemplate:
    """One template. Nothing changes after construction."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: texts by name (`bos_token`, ...). Raises ValueError, `cannot be compiled: ...`."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ValueError(f"cannot be compiled: {error}") from None

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
        variables = {"tools": None, "documents": None, **self._special_tokens, **more}
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **variables)
        except Exception as error:  # a template computes, and so can fail in any way
            raise ValueError(f"the chat template refuses these messages: {error}") from None


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
