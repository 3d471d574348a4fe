"""JSON schema check: only keywords that the grammar engine honours. Knows keywords, not their meaning.

The engine takes unknown keywords for annotations; a user who writes `nullable` or `contentEncoding` means it. Source:
JSON Schema, drafts 4 to 2020-12; what the engine supports was found by trying every keyword of these.
"""

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64
_ANNOTATIONS = {"$schema", "$id", "$anchor", "$comment", "title", "description", "default", "examples", "deprecated"}
_DIRECTIONS = {"readOnly", "writeOnly"}
_ANY = {"type", "enum", "const", "$ref"}
_OBJECTS = {"required", "minProperties", "maxProperties"}
_ARRAYS = {"minItems", "maxItems"}
_STRINGS = {"minLength", "maxLength", "pattern", "format"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_SCHEMA = {"additionalProperties", "items"}
_SCHEMAS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_NAMED_SCHEMAS = {"$defs", "definitions", "properties", "patternProperties"}
_KNOWN = frozenset().union(
    _ANNOTATIONS, _DIRECTIONS, _ANY, _OBJECTS, _ARRAYS, _STRINGS, _NUMBERS, _SCHEMA, _SCHEMAS, _NAMED_SCHEMAS
)


def check_schema(schema: Any, where: str = "$", depth: int = 0) -> None:
    """Raises ValueError naming the keyword that is not supported, or has a value of the wrong kind, and its place."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError(f"the JSON schema at {where} must be an object or a boolean, got {_shown(schema)}")
    if depth > MAX_DEPTH:
        raise ValueError(f"the JSON schema is nested more than {MAX_DEPTH} deep")
    for keyword, value in schema.items():
        if keyword == "discriminator" and ("oneOf" in schema or "anyOf" in schema):
            continue  # OpenAPI's hint to what the alternatives say themselves
        if keyword not in _KNOWN:
            raise ValueError(f"JSON schema keyword {_shown(keyword)} at {where} is not supported")
        inner = f"{where}.{keyword}"
        if keyword in _SCHEMA:
            if isinstance(value, list):
                raise ValueError(
                    f"JSON schema keyword {keyword!r} at {where} is not supported as a list: use prefixItems"
                )
            check_schema(value, inner, depth + 1)
        elif keyword in _SCHEMAS:
            if not isinstance(value, list) or not value:
                raise ValueError(f"JSON schema keyword {keyword!r} at {where} must be a list of schemas")
            for index, one in enumerate(value):
                check_schema(one, f"{inner}[{index}]", depth + 1)
        elif keyword in _NAMED_SCHEMAS:
            if not isinstance(value, Mapping):
                raise ValueError(f"JSON schema keyword {keyword!r} at {where} must be an object of schemas")
            for name, one in value.items():
                check_schema(one, f"{inner}.{name}", depth + 1)
        else:
            _check_value(keyword, value, where)


def _check_value(keyword: str, value: Any, where: str) -> None:
    """What older drafts wrote as booleans would count for nothing."""
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and (
        isinstance(value, bool) or not isinstance(value, int | float)
    ):
        raise ValueError(f"JSON schema keyword {keyword!r} at {where} must be a number, got {_shown(value)}")
    if keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise ValueError(f"JSON schema keyword 'required' at {where} must be a list of names, got {_shown(value)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
