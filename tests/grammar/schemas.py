"""JSON schemas of every kind that grammars honour, each bounded so that a random model comes to an end."""

from typing import Any

Schema = dict[str, Any]

SHORT: Schema = {"type": "string", "maxLength": 6}
DIGIT: Schema = {"type": "integer", "minimum": 0, "maximum": 9}


def record(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> Schema:
    """An object of these properties and no others; all of them required unless said otherwise."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


SCHEMAS: dict[str, Schema] = {
    "flat": record({"name": SHORT, "digit": DIGIT, "ok": {"type": "boolean"}}),
    "nested": record({"a": record({"b": record({"c": record({"d": DIGIT})})}), "e": record({})}),
    "optional": record({"a": DIGIT, "b": SHORT, "c": {"type": "null"}, "d": DIGIT}, required=["b"]),
    "nothing required": record({"a": DIGIT, "b": {"type": "boolean"}}, required=[]),
    "ref": record({"from": {"$ref": "#/$defs/place"}, "to": {"$ref": "#/$defs/place"}})
    | {"$defs": {"place": record({"x": DIGIT, "y": DIGIT})}},
    "definitions of older drafts": {"$ref": "#/definitions/pair"}
    | {"definitions": {"pair": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2}}},
    "ref with more beside it": {"$ref": "#/$defs/s", "minLength": 2, "$defs": {"s": SHORT}},
    "ref to an anchor": {"$ref": "#digit", "$defs": {"d": {"$anchor": "digit", **DIGIT}}},
    "recursive ref": record({"value": DIGIT, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}),
    "recursive tree": {
        "$defs": {
            "tree": record(
                {"leaf": DIGIT, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}},
                required=["leaf"],
            )
        },
        "$ref": "#/$defs/tree",
    },
    "mutually recursive refs": {
        "$defs": {
            "even": {"anyOf": [{"const": 0}, record({"odd": {"$ref": "#/$defs/odd"}})]},
            "odd": record({"even": {"$ref": "#/$defs/even"}}),
        },
        "$ref": "#/$defs/even",
    },
    "enum": {"enum": ["red", "green", 'a "quoted" \\ one', "é\n\u4e2d", 3, -1.5, None, True, [1, {"a": 2}]]},
    "enum of a type": {"type": "string", "enum": ["one", "two", 3]},
    "enum and pattern": {"enum": ["apple", "pear", "avocado"], "pattern": "^a"},
    "const": record({"kind": {"const": "circle"}, "n": {"const": {"a": [1, "x"]}}, "zero": {"const": 0}}),
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,4}$"},
    "pattern not anchored": record({"a": {"type": "string", "pattern": "b[cd]", "maxLength": 6}}),
    "pattern and lengths": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
    "lengths": {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4}, "maxItems": 3},
    "integer bounds": {"type": "integer", "minimum": -17, "maximum": 1203},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3},
    "number bounds": {"type": "number", "minimum": -0.75, "maximum": 2.5},
    "exclusive number bounds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multiple of": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "multiple of a fraction": {"type": "number", "multipleOf": 0.25, "minimum": -10, "maximum": 10},
    "array bounds": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 5},
    "array of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "minItems": 1,
        "maxItems": 3,
    },
    "prefix items": {"type": "array", "prefixItems": [SHORT, DIGIT, {"type": "null"}], "items": False, "minItems": 2},
    "prefix items and others": {"type": "array", "prefixItems": [DIGIT], "items": {"type": "boolean"}, "maxItems": 3},
    "union": {"anyOf": [DIGIT, SHORT, {"type": "null"}, record({"a": DIGIT})]},
    "several types": {"type": ["integer", "null", "boolean"], "minimum": 0, "maximum": 5},
    "one of": {"oneOf": [{"type": "boolean"}, {"type": "string", "enum": ["a"]}]},
    "tagged union": {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {
            "cat": record({"kind": {"const": "cat"}, "lives": DIGIT}),
            "dog": record({"kind": {"const": "dog"}, "tricks": {"type": "array", "items": SHORT, "maxItems": 2}}),
        },
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
            {"properties": {"a": {"minimum": 3}}},
        ],
        "maxProperties": 2,
    },
    "all of numbers": {"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 99}, {"multipleOf": 5}]},
    "any of beside properties": {
        "type": "object",
        "properties": {"a": DIGIT, "b": {"type": "boolean"}},
        "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "additional properties of a type": {
        "type": "object",
        "properties": {"a": DIGIT},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n_[a-c]$": DIGIT, "^s_[a-c]$": {"enum": ["x", "y"]}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "names beyond ASCII": record({"größe": DIGIT, "名前": {"enum": ["太郎"]}, 'with "quotes"': {"type": "null"}}),
    "date": {"type": "string", "format": "date"},
    "uuid": record({"id": {"type": "string", "format": "uuid"}}),
    "ipv4": {"type": "string", "format": "ipv4"},
    "annotated": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/annotated",
        "title": "Annotated",
        "description": "A digit.",
        "$comment": "none",
        "examples": [3],
        "default": 4,
        "deprecated": False,
        "readOnly": True,
        **DIGIT,
    },
    "true property": {"type": "array", "items": record({"a": DIGIT, "b": False}, required=["a"]), "maxItems": 2},
}
