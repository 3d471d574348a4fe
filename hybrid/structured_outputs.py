"""StructuredOutputsParams: what the output of one request must follow. Knows no grammar engine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one of the first five, named as in vLLM. Raises ValueError naming what is given otherwise.

    json: a JSON schema, as a mapping or as text.
    json_object: any JSON object, when true.
    regex: a regular expression that the whole output matches.
    choice: the output is one of these strings.
    grammar: a context-free grammar, in Lark's or in EBNF notation.
    disable_any_whitespace: JSON comes in one line, as `json.dumps` writes it; the model has no choice of blank space.
    """

    json: str | Mapping[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        """Check and store the normal form: `json` as text, `choice` as a tuple, false `json_object` as None."""
        if self.json_object is not None and not isinstance(self.json_object, bool):
            raise ValueError(f"json_object must be true or false, got {self.json_object!r}.")
        object.__setattr__(self, "json_object", self.json_object or None)
        if not isinstance(self.disable_any_whitespace, bool):
            raise ValueError(f"disable_any_whitespace must be true or false, got {self.disable_any_whitespace!r}.")
        kinds = [one.name for one in fields(self) if one.name != "disable_any_whitespace"]
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(kinds)} is needed, got {given}.")
        for name in ("regex", "grammar"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} must be a string, got {getattr(self, name)!r}.")
        if self.choice is not None:
            if isinstance(self.choice, str) or not isinstance(self.choice, Sequence) or not self.choice:
                raise ValueError(f"choice must be a list of strings, got {self.choice!r}.")
            for one in self.choice:
                if not isinstance(one, str) or not one:
                    raise ValueError(f"a choice must be a string of one character or more, got {one!r}.")
            object.__setattr__(self, "choice", tuple(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))


def _schema_text(schema: object) -> str:
    """A schema as JSON text. Raises ValueError if it is no JSON object or boolean."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"json is no JSON: {error}.") from None
    if not isinstance(schema, Mapping | bool):
        raise ValueError(f"json must be a JSON schema, got {schema!r}.")
    try:
        return json.dumps(dict(schema) if isinstance(schema, Mapping) else schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"json is no JSON: {error}.") from None
