"""Undeclared members: what the policy forbids, keyword by keyword, and its report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest
from byte_membership import BYTES, is_member

from structgen.engine import compile
from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.json_schema import JsonPolicy, forget_known, json_schema, setting_of
from structgen.frontends.json_schema.translation import program_key
from structgen.grammar.limits import Limits

FORBIDDEN = JsonPolicy(additional="forbidden", whitespace="single", order="any")
A = {"properties": {"a": {"type": "integer"}}}
OF_K = {"type": "object", "required": ["k"]}
TWO = {"type": "object", "minProperties": 2}
STRANGERS = {"x": 1, "y": 1}
B = {"properties": {"b": {"type": "integer"}}}


def accepts(schema: Any, value: Any, **options: Any) -> bool:
    try:
        constraint = compile(json_schema(schema, policy=FORBIDDEN, **options), BYTES)
    except UnsatisfiableGrammar:
        return False
    return is_member(constraint.matcher(), json.dumps(value).encode())


@pytest.mark.parametrize(
    ("schema", "members", "strangers"),
    [
        (A, [{}, {"a": 1}, 1, "x", []], [{"x": 1}, {"a": 1, "x": 1}]),
        ({"properties": {"in": A}}, [{"in": {"a": 1}}], [{"in": {"x": 1}}, {"in": {}, "x": 1}]),
        ({"items": A}, [[{"a": 1}, {}]], [[{"x": 1}], [{"a": 1}, {"a": 1, "x": 1}]]),
        ({"prefixItems": [A, B]}, [[{"a": 1}, {"b": 1}, {"x": 1}]], [[{"b": 1}], [{}, {"a": 1}]]),
        ({"additionalProperties": A}, [{"x": {"a": 1}}], [{"x": {"y": 1}}]),
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, [{"a": 1}], [{"x": 1}]),
        ({"properties": {"a": {"$ref": "#"}}}, [{"a": {"a": {}}}], [{"a": {"a": {"x": 1}}}]),
        ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}, {}], [{"a": 1, "b": 1}, {"x": 1}]),
        (
            {"oneOf": [{**A, "required": ["a"]}, {**B, "required": ["b"]}]},
            [{"a": 1}, {"b": 1}],
            [{"a": 1, "x": 1}, {"a": 1, "b": "x"}],
        ),
        ({**A, "anyOf": [B, {"type": "object"}]}, [{"a": 1, "b": 1}, {"a": 1}], [{"a": 1, "b": 1, "x": 1}]),
        ({"allOf": [A, B]}, [{"a": 1, "b": 1}, {"b": 1}], [{"a": 1, "b": 1, "x": 1}]),
        ({**A, "$ref": "#/$defs/b", "$defs": {"b": B}}, [{"a": 1, "b": 1}], [{"a": 1, "x": 1}]),
        ({"allOf": [A, {"allOf": [B]}], "properties": {"c": {}}}, [{"a": 1, "b": 1, "c": 1}], [{"c": 1, "x": 1}]),
        (
            {"allOf": [{"properties": {"in": A}}, {"properties": {"in": B}}]},
            [{"in": {"a": 1, "b": 1}}],
            [{"in": {"a": 1, "x": 1}}],
        ),
        # required and dependentRequired declare names too
        ({**A, "required": ["x"]}, [{"a": 1, "x": 1}], [{"x": 1, "y": 1}]),
        ({**A, "dependentRequired": {"a": ["x"]}}, [{"a": 1, "x": 1}, {"x": 1}], [{"y": 1}]),
        ({"patternProperties": {"^x": {"type": "integer"}}}, [{"x1": 1, "x2": 2}], [{"y": 1}]),
        ({**A, "patternProperties": {"^x": {}}}, [{"a": 1, "x": 1}], [{"a": 1, "y": 1}]),
        ({**A, "propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"x": 1}]),
        ({"properties": {"a": {}, "x": False}}, [{"a": 1}], [{"y": 1}]),
        # the schema itself restricts other members
        ({**A, "additionalProperties": True}, [{"a": 1, "x": 1}], []),
        ({**A, "additionalProperties": {"type": "null"}}, [{"x": None}], []),
        ({**A, "unevaluatedProperties": {"type": "null"}}, [{"x": None}], []),
        ({**A, "unevaluatedProperties": True}, [{"x": None}], []),
        ({"allOf": [A, {"additionalProperties": True}]}, [{"a": 1, "x": 1}], []),
        ({"anyOf": [{**A, "additionalProperties": True}, B]}, [{"a": 1, "x": 1}, {"x": 1}], []),
        # no member is named
        ({}, [{"x": {"y": 1}}], []),
        ({"type": "object"}, [{"x": {"y": 1}}, {}], []),
        ({"type": "object", "minProperties": 1}, [{"x": 1}], []),
        # it is said that there are none
        ({"properties": {}}, [{}], [{"x": 1}]),
        ({"properties": {}, "additionalProperties": A}, [{"x": {"a": 1}}], [{"x": {"y": 1}}]),
        ({"allOf": [{"properties": {}}, A]}, [{"a": 1}], [{"x": 1}]),
        ({"properties": {"a": False}}, [{"x": 1}], []),
        ({"properties": {"a": True}}, [{"a": {"x": 1}}], [{"x": 1}]),
        # constants are not changed
        ({"enum": [{"x": 1}], "properties": {"a": {}}}, [{"x": 1}], []),
        ({"properties": {"a": {"const": {"x": 1}}}}, [{"a": {"x": 1}}], [{"x": 1}]),
        # negated schemas name nothing and are not closed
        ({**A, "not": B}, [], [{"b": "x"}, {"a": 1, "b": "x"}]),
        ({"not": A}, [{"a": "x"}, {"a": "x", "y": 1}], []),
        ({**A, "not": {"required": ["b"]}}, [{"a": 1}, {}], [{"a": 1, "x": 1}]),
        ({"if": A, "then": B, "else": {"properties": {"a": {}}}}, [{"a": 1, "b": 1}, {"a": "x"}], [{"x": 1}]),
        ({**A, "dependentSchemas": {"a": B}}, [{"a": 1, "b": 1}, {}], [{"b": 1}, {"a": 1, "x": 1}]),
        ({"contains": {**A, "required": ["a"]}}, [[{"a": 1}, {"x": 1}], [1, {"a": 1}]], [[{"a": 1, "x": 1}]]),
    ],
)
def test_keywords(schema: Any, members: list[Any], strangers: list[Any]) -> None:
    """Accepted values are valid; valid values are accepted unless they have an undeclared member."""
    validator = jsonschema.Draft202012Validator(schema)
    for value in members:
        assert validator.is_valid(value), value
        assert accepts(schema, value), value
    for value in strangers:
        assert validator.is_valid(value), value
        assert not accepts(schema, value), value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"not": A}, {"x": 1}),
        ({"not": A}, {}),
        ({"not": {"properties": {"in": A}}}, {"in": {"x": 1}}),
        ({"$defs": {"a": A}, "properties": {"x": {"$ref": "#/$defs/a"}}, "not": {"$ref": "#/$defs/a"}}, {"x": {}}),
        ({"if": A, "then": False}, {"x": 1}),
        ({"maxContains": 0, "contains": A}, [{"x": 1}]),
        ({"oneOf": [A, {"type": "object"}]}, {"x": 1}),
        # both are valid, but closed by the names of the second the first has no such value
        ({"oneOf": [{**OF_K, "properties": {"k": held}} for held in (TWO, {"type": "object", **A})]}, {"k": STRANGERS}),
        # likewise, and the closed part stands in the first as it stands in both
        (
            {"oneOf": [{**OF_K, "properties": {"k": {**TWO, **A}}}, {"required": ["j"], "additionalProperties": True}]},
            {"k": STRANGERS, "j": 1},
        ),
    ],
)
def test_the_constraint_is_never_weakened(schema: Any, value: Any) -> None:
    """These values are invalid, but would be valid if the inner schemas were closed one by one."""
    assert not jsonschema.Draft202012Validator(schema).is_valid(value)
    assert not accepts(schema, value)


def test_every_draft_is_closed() -> None:
    """Draft 7 has no ``unevaluatedProperties``, and its ``$ref`` hides its siblings."""
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"b": B}}
    beside = {**schema, "$ref": "#/definitions/b", **A}
    assert accepts(beside, {"b": 1})
    assert not accepts(beside, {"a": 1})
    both = {**schema, "allOf": [{"$ref": "#/definitions/b"}, A]}
    assert accepts(both, {"a": 1, "b": 1})
    assert not accepts(both, {"a": 1, "x": 1})
    unknown = {**schema, **A, "unevaluatedProperties": True}
    assert not accepts(unknown, {"x": 1}), "no keyword of draft 7"


def test_other_documents_are_closed() -> None:
    """Schemas of a registry are closed where they are referred to."""
    schema = {"allOf": [{"$ref": "https://example.org/b"}, A]}
    registry = {"https://example.org/b": B}
    assert accepts(schema, {"a": 1, "b": 1}, registry=registry)
    assert not accepts(schema, {"a": 1, "x": 1}, registry=registry)


@dataclass
class Point:
    x: int
    y: int


def test_forms_of_schemas() -> None:
    """Text, bytes, dictionaries and types mean the same, and caches distinguish both policies."""
    dictionary = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}
    text = json.dumps(dictionary)
    forget_known()
    for schema in (dictionary, text, text.encode(), Point):
        for _ in range(2):
            assert accepts(schema, {"x": 1, "y": 2})
            assert not accepts(schema, {"x": 1, "y": 2, "z": 3})
            allowed = compile(json_schema(schema, order="any", additional="written"), BYTES).matcher()
            assert is_member(allowed, b'{"x": 1, "y": 2, "z": 3}')


def test_grammars_on_disk_are_kept_apart() -> None:
    """The file names of the two policies differ."""
    settings = [setting_of(JsonPolicy(additional=one), Limits()) for one in ("written", "forbidden")]
    keys = {program_key("{}", setting, None) for setting in settings}
    assert len(keys) == 2


def test_what_stays_open_is_reported() -> None:
    """The policy is a line of the report, and so is each object schema that names no member."""
    schema = {
        "properties": {
            "a": {"type": "object"},
            "b": {"type": ["object", "null"], "minProperties": 1},
            "c": A,
            "d": {"anyOf": [{"type": "object"}, A, {"type": "string"}]},
            "e": {"type": "array"},
            "f": {"type": "object", "additionalProperties": True},
            "g": {"const": {}},
            "h": {"$ref": "#/$defs/open"},
            "i": {"allOf": [{"type": "object"}, A]},
        },
        "$defs": {"open": {"type": "object", "title": "of all kinds"}},
    }
    description = json_schema(schema, policy=FORBIDDEN).description
    found = [entry.where for entry in description.entries if entry.keyword == "additional"]
    assert found == ["#/properties/a", "#/properties/b", "#/properties/d/anyOf/0", "#/$defs/open"]
    assert dict(description.policies)["additional members"].startswith("forbidden where the schema")
    allowed = json_schema(schema, additional="written").description
    assert not [entry for entry in allowed.entries if entry.keyword == "additional"]
    assert dict(allowed.policies)["additional members"].startswith("allowed where the schema says nothing")


def test_what_cannot_be_met_is_an_error() -> None:
    """Where every valid value needs an undeclared member, the error names the policy."""
    needs_more = {"type": "object", **A, "minProperties": 2}
    with pytest.raises(UnsatisfiableGrammar, match=r"'minProperties' .* with additional='forbidden' of the policy"):
        json_schema(needs_more, policy=FORBIDDEN)
    with pytest.raises(UnsatisfiableGrammar, match="not named, with additional='forbidden' of the policy"):
        json_schema({"type": "object", **A, "not": {"properties": {"b": {"const": 1}}}}, policy=FORBIDDEN)


def test_other_values_are_refused() -> None:
    """They are refused, as for every policy."""
    with pytest.raises(ValueError, match="additional is 'closed'; give one of written, forbidden"):
        JsonPolicy(additional="closed")  # type: ignore[arg-type]


@pytest.mark.parametrize("items", [A, {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}])
def test_unique_items_may_run_out(items: Any) -> None:
    """Closed objects may have few values: no text begins that cannot end."""
    schema = {"type": "array", "items": {"type": "object", **items}, "uniqueItems": True, "minItems": 2, "maxItems": 4}
    start = compile(json_schema(schema, policy=FORBIDDEN), BYTES).matcher()
    first = json.dumps([{"a": 1}, {"a": 2}] if items is A else [{"a": True}, {"a": False}]).encode()
    assert is_member(start, first)
    assert not is_member(start, json.dumps([{"a": True}, {"a": False}, {"a": True}]).encode())
    start.reset()
    assert start.accept_bytes(first[:-1]) == len(first) - 1
    assert bytes(start.shortest_completion())


REQUIRED = JsonPolicy(required="all", additional="written", order="any")
NULLABLE = {"type": ["object", "null"], "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("schema", "members", "strangers"),
    [
        (A, [{"a": 1}, {"a": 1, "x": 2}], [{}, {"x": 1}]),
        ({"properties": {"in": A}}, [{"in": {"a": 1}}], [{"in": {}}, {}]),
        ({"items": A}, [[], [{"a": 1}]], [[{}], [{"a": 1}, {"x": 1}]]),
        ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], [{}, {"x": 1}]),
        ({"allOf": [A, B]}, [{"a": 1, "b": 1}], [{"a": 1}, {"b": 1}, {}]),
        ({**A, "anyOf": [B, {"type": "object"}]}, [{"a": 1, "b": 1}, {"a": 1}], [{"b": 1}, {}]),
        ({"allOf": [A, {"properties": {"a": False}}]}, [{}, {"x": 1}], []),
        ({"properties": {"a": {}, "x": False}}, [{"a": 1}], [{}]),
        ({"patternProperties": {"^x": A}}, [{}, {"x": {"a": 1}}], [{"x": {}}]),
        ({"additionalProperties": A}, [{}, {"k": {"a": 1}}], [{"k": {}}]),
        ({**A, "not": B}, [{"a": 1, "b": "x"}], [{"b": "x"}]),
        ({"if": A, "then": B, "else": {"properties": {"c": {}}}}, [{"a": 1, "b": 1}, {"a": "x", "c": 1}], [{"a": 1}]),
        ({"$ref": "#/$defs/node", "$defs": {"node": NULLABLE}}, [{"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1}]),
        ({"enum": [{}, {"a": 1}], "properties": {"a": {}}}, [{}, {"a": 1}], []),
    ],
)
def test_all_declared_members_are_required(schema: Any, members: list[Any], strangers: list[Any]) -> None:
    """Accepted values are valid; valid values are accepted unless they lack a member that applies and is declared."""
    validator = jsonschema.Draft202012Validator(schema)
    start = compile(json_schema(schema, policy=REQUIRED), BYTES).matcher()
    for value in members:
        assert validator.is_valid(value), value
        assert is_member(start, json.dumps(value).encode()), value
    for value in strangers:
        assert validator.is_valid(value), value
        assert not is_member(start, json.dumps(value).encode()), value


def test_members_that_all_schemas_together_exclude_are_an_error() -> None:
    """The error names the policy."""
    with pytest.raises(UnsatisfiableGrammar, match="required property 'a' can have no value with required='all'"):
        compile(json_schema({"type": "object", "properties": {"a": {"enum": []}}}, required="all"), BYTES)
    recursive = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    with pytest.raises(UnsatisfiableGrammar):
        compile(json_schema(recursive, required="all"), BYTES)
    with pytest.raises(UnsatisfiableGrammar, match="'minProperties' or 'maxProperties' cannot be met"):
        compile(
            json_schema({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1}, required="all"), BYTES
        )
