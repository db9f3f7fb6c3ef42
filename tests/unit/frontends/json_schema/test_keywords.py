"""Each keyword of JSON Schema against ``jsonschema``, on a pool of values of every type."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from schema_as_written import as_written as json_schema

from structgen.errors import UnsatisfiableGrammar
from structgen.grammar.nodes import Grammar
from structgen.testing.reference import ReferenceMatcher

# In every schema below declared names have this order, so each value is written in the declared order.
POOL: tuple[Any, ...] = (
    None,
    True,
    False,
    *(0, 1, 2, 3, 7, 10, 14, -1, -2, 100, 123456789012),
    *(0.5, 1.5, -1.5, 2.25, 9.99, 1e-7, -3.5e-5),
    *("", "a", "ab", "abc", "abcd", "b", "é", "日本", "😀😀", "a\nb", 'q"\\', "x_1"),
    *([], [1], [1, 2], [1, "a"], ["a"], ["a", 1, None], [[1]], [1, 2, 3, 4]),
    {},
    {"a": 1},
    {"a": "s"},
    {"b": 1},
    {"a": 1, "b": 2},
    {"a": 1, "b": "s", "c": None},
    {"c": [1]},
    {"z": 1},
    {"a": 1, "z": "s"},
    {"x_1": 1},
    {"x_1": "s", "y": 2},
    {"a": {"a": 1}},
    {"a": {"a": {"a": {}}}},
    {"kind": "circle", "r": 1},
    {"kind": "square", "side": 2},
    {"kind": "circle", "side": 2},
)

A_TO_C: dict[str, Any] = {"a": {}, "b": {}, "c": {}}
SCHEMAS: dict[str, Any] = {
    "true": True,
    "nothing said": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "array": {"type": "array"},
    "object": {"type": "object"},
    "several types": {"type": ["string", "null", "object"]},
    "integer or number": {"type": ["integer", "number"]},
    "minLength of strings only": {"minLength": 2},
    "maxLength": {"type": "string", "maxLength": 2},
    "lengths": {"type": "string", "minLength": 1, "maxLength": 3},
    "length as 2.0": {"type": "string", "minLength": 2.0},
    "empty string": {"type": "string", "maxLength": 0},
    "pattern anywhere": {"type": "string", "pattern": "b"},
    "pattern anchored": {"type": "string", "pattern": "^a.?$"},
    "pattern, lengths": {"type": "string", "pattern": "^a", "minLength": 2, "maxLength": 3},
    "pattern of other types": {"pattern": "^a"},
    "minimum": {"type": "integer", "minimum": 2},
    "maximum": {"type": "integer", "maximum": -1},
    "interval": {"type": "integer", "minimum": -1, "maximum": 12},
    "exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "decimal interval": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "bound without type": {"minimum": 3},
    "multipleOf 7": {"type": "integer", "multipleOf": 7},
    "multipleOf in an interval": {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 100},
    "multipleOf 10": {"type": "integer", "multipleOf": 10},
    "enum": {"enum": [1, "a", None, True, [1, 2], {"a": 1}]},
    "enum and type": {"enum": [1, "a", None, 1.5], "type": ["integer", "null"]},
    "enum and pattern": {"enum": ["a", "ab", "b"], "pattern": "^a", "maxLength": 1},
    "enum of arrays and items": {"enum": [[1], ["a"], [1, 2, 3, 4]], "items": {"type": "integer"}, "maxItems": 2},
    "enum of objects and properties": {"enum": [{"a": 1}, {"a": "s"}], "properties": {"a": {"type": "string"}}},
    "const": {"const": {"a": {"a": 1}}},
    "const false is not 0": {"const": False},
    "const 0 is not false": {"const": 0},
    "items": {"type": "array", "items": {"type": "integer"}},
    "items of other types": {"items": {"type": "integer"}},
    "minItems": {"type": "array", "minItems": 2},
    "maxItems": {"type": "array", "maxItems": 1},
    "counted items": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "integer"}},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    "prefixItems, closed": {"type": "array", "prefixItems": [{"type": "integer"}, {}], "items": False},
    "prefixItems, minItems": {"type": "array", "prefixItems": [{}, {"type": "string"}], "minItems": 2},
    "prefixItems, false": {"type": "array", "prefixItems": [{}, False]},
    "no items": {"type": "array", "items": False},
    "properties": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "properties of other types": {"properties": {"a": {"type": "integer"}}},
    "required": {"type": "object", "properties": A_TO_C, "required": ["b"]},
    "required, undeclared": {"type": "object", "required": ["z"]},
    "required, undeclared, typed": {"required": ["z"], "additionalProperties": {"type": "string"}},
    "closed": {"type": "object", "properties": A_TO_C, "additionalProperties": False},
    "closed and empty": {"type": "object", "additionalProperties": False},
    "typed others": {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
    "forbidden property": {"type": "object", "properties": {"a": False}},
    "patternProperties": {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}},
    "patternProperties, closed": {"patternProperties": {"^x_": {}, "^y": {}}, "additionalProperties": False},
    "pattern matches a declared name": {
        "properties": {"a": {"type": "integer"}},
        "patternProperties": {"a": {"minimum": 2}},
    },
    "overlapping patterns": {"patternProperties": {"_": {"type": "integer"}, "1$": {"minimum": 2}}},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 1}},
    "propertyNames, enum": {"propertyNames": {"enum": ["a", "b"]}},
    "minProperties 1": {"type": "object", "properties": A_TO_C, "minProperties": 1},
    "minProperties, closed": {"properties": A_TO_C, "additionalProperties": False, "minProperties": 2},
    "maxProperties": {"type": "object", "properties": {"a": {}}, "maxProperties": 1},
    "maxProperties 0": {"type": "object", "maxProperties": 0},
    "anyOf": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]},
    "anyOf, siblings": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["z"]}]},
    "anyOf, one dead": {"anyOf": [{"enum": []}, {"type": "null"}]},
    "oneOf by type": {"oneOf": [{"type": "string"}, {"type": "array"}]},
    "oneOf by const": {
        "oneOf": [
            {"properties": {"kind": {"const": "circle"}, "r": {}}, "required": ["kind", "r"], "type": "object"},
            {"properties": {"kind": {"const": "square"}, "side": {}}, "required": ["kind"], "type": "object"},
        ]
    },
    "oneOf by closed objects": {
        "oneOf": [
            {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
            {"type": "object", "properties": {"b": {}}, "required": ["b"], "additionalProperties": False},
        ]
    },
    "oneOf by intervals": {"oneOf": [{"type": "integer", "maximum": 2}, {"type": "integer", "minimum": 3}]},
    "oneOf of constants, one twice": {"oneOf": [{"const": 1}, {"enum": [2, 3]}, {"enum": [3, 7]}]},
    "oneOf of one": {"oneOf": [{"type": "string"}]},
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 2}, {"maximum": 10}]},
    "allOf of objects": {
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 1}, "b": {"type": "integer"}}},
        ]
    },
    "allOf, additionalProperties sees its own properties only": {
        "allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]
    },
    "allOf of arrays": {"allOf": [{"items": {"type": "integer"}}, {"prefixItems": [{"minimum": 1}, {"maximum": 2}]}]},
    "allOf of strings": {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}, {"minLength": 3}]},
    "allOf with anyOf": {"allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"minimum": 2}]}]},
    "$ref": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}},
    "$ref, siblings": {"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": {"type": "integer"}}},
    "$ref, escapes": {"$ref": "#/$defs/a~1b~0c%25", "$defs": {"a/b~c%": {"type": "integer"}}},
    "$ref to an anchor": {"$ref": "#here", "$defs": {"n": {"$anchor": "here", "type": "null"}}},
    "$ref by $id": {"$id": "https://e.org/s", "$ref": "n#/$defs/m", "$defs": {
        "n": {"$id": "n", "$defs": {"m": {"type": "null"}}}}},
    "recursion": {"properties": {"a": {"$ref": "#"}}, "additionalProperties": False, "type": "object"},
    "recursion through $defs": {
        "$ref": "#/$defs/list",
        "$defs": {"list": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/list"}]}}},
    },
    "uniqueItems of at most one": {"type": "array", "maxItems": 1, "uniqueItems": True},
    "annotations": {"title": "t", "default": 1, "examples": [1], "readOnly": True, "x-own": {}, "type": "integer"},
    "unknown format": {"type": "string", "format": "color"},
}  # fmt: skip


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is accepted, by the reference implementation."""
    return members(grammar, [text]) == [True]


def members(grammar: Grammar, texts: list[str]) -> list[bool]:
    """Whether each text is accepted."""
    start = ReferenceMatcher(grammar)
    found = []
    for text in texts:
        matcher, data = start.fork(), text.encode()
        found.append(matcher.accept_bytes(data) == len(data) and matcher.is_accepting)
    return found


POOL_TEXTS = [json.dumps(value, ensure_ascii=False) for value in POOL]


def admitted(grammar: Grammar) -> dict[str, bool]:
    """The values of the pool that are accepted."""
    return dict(zip(map(repr, POOL), members(grammar, POOL_TEXTS), strict=True))


@pytest.mark.parametrize("name", SCHEMAS)
def test_agrees_with_jsonschema(name: str) -> None:
    """Every value of the pool is accepted iff ``jsonschema`` calls it valid."""
    schema = SCHEMAS[name]
    oracle = jsonschema.Draft202012Validator(schema)
    expected = {repr(value): oracle.is_valid(value) for value in POOL}
    assert admitted(json_schema(schema)) == expected
    assert any(expected.values())


OLDER: dict[str, Any] = {
    "draft 4 bounds": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 10, "exclusiveMaximum": True,
    },
    "draft 4 bounds, not exclusive": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer", "minimum": 1, "exclusiveMinimum": False,
    },
    "draft 4 items": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"},
    },
    "draft 7 items, closed": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array", "items": [{}, {"type": "string"}], "additionalItems": False,
    },
    "draft 7 ignores siblings of $ref": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/n", "minimum": 5, "definitions": {"n": {"type": "integer"}},
    },
    "draft 4 has no const": {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "const": 1},
    "draft 7 has no prefixItems": {
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "prefixItems": [False],
    },
    "draft 4 anchors": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "$ref": "#n", "definitions": {"x": {"id": "#n", "type": "null"}},
    },
    "2019-09 items": {
        "$schema": "https://json-schema.org/draft/2019-09/schema", "items": [{"type": "integer"}], "minItems": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OLDER)
def test_older_drafts(name: str) -> None:
    """A declared draft decides which keywords exist and what they mean."""
    schema = OLDER[name]
    oracle = jsonschema.validators.validator_for(schema)(schema)
    assert admitted(json_schema(schema)) == {repr(value): oracle.is_valid(value) for value in POOL}


def test_older_forms_without_declared_draft() -> None:
    """Without ``$schema``, forms that only older drafts have keep their meaning."""
    grammar = json_schema({"type": "array", "items": [{"type": "integer", "minimum": 1, "exclusiveMinimum": True}]})
    assert accepts(grammar, "[2]")
    assert not accepts(grammar, "[1]")


def test_nullable_adds_null_to_type() -> None:
    """``nullable`` of OpenAPI adds null to the type, and nothing where there is no type."""
    grammar = json_schema({"type": "string", "nullable": True, "minLength": 1})
    assert [accepts(grammar, text) for text in ("null", '"a"', '""', "1")] == [True, True, False, False]
    assert not accepts(json_schema({"type": "string", "enum": ["a"], "nullable": True}), "null")


UNSATISFIABLE: dict[str, tuple[Any, str]] = {
    "false": (False, "#"),
    "empty enum": ({"enum": []}, "'enum' is empty"),
    "types": ({"allOf": [{"type": "string"}, {"type": "number"}]}, "#/allOf/0 and #/allOf/1"),
    "constants": ({"allOf": [{"const": 1}, {"const": 2}]}, "no constant is common"),
    "lengths": ({"type": "string", "minLength": 3, "maxLength": 2}, "'minLength' exceeds 'maxLength'"),
    "bounds": ({"type": "integer", "minimum": 3, "maximum": 2}, "no number is left"),
    "no integer between": ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "no number is left"),
    "no multiple between": ({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5}, "no number is left"),
    "items": ({"type": "array", "minItems": 3, "maxItems": 2}, "'minItems'"),
    "items that cannot be": ({"type": "array", "minItems": 1, "items": False}, "#/items is false"),
    "required and false": ({"type": "object", "required": ["a"], "properties": {"a": False}}, "'a' can have no value"),
    "required and closed": ({"type": "object", "required": ["a"], "additionalProperties": False}, "'a'"),
    "required and not a name": ({"type": "object", "required": ["ab"], "propertyNames": {"maxLength": 1}}, "'ab'"),
    "enum against type": ({"enum": ["a"], "type": "integer"}, "no value that the other keywords allow"),
    "all alternatives dead": ({"anyOf": [{"enum": []}, False]}, "#/anyOf/0"),
    "nested": ({"type": "object", "required": ["a"], "properties": {"a": {"enum": []}}}, "#/properties/a"),
}


@pytest.mark.parametrize("name", UNSATISFIABLE)
def test_unsatisfiable_schema_is_an_error(name: str) -> None:
    """A schema without any valid value gives an error with the place and the contradicting keywords."""
    schema, evidence = UNSATISFIABLE[name]
    with pytest.raises(UnsatisfiableGrammar) as caught:
        json_schema(schema)
    assert evidence in caught.value.evidence
    assert not any(jsonschema.Draft202012Validator(schema).is_valid(value) for value in POOL)
