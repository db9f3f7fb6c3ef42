"""The report of a grammar, its policies, and the structure of the term."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from schema_as_written import AS_WRITTEN, as_written as json_schema

from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.json_schema.emit.syntax import syntax_of
from structgen.grammar.nodes import Grammar, Reference, Rules, Shared, postorder
from structgen.grammar.nodes.description import Described, Description, Status
from structgen.testing.reference import ReferenceMatcher


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is accepted, by the reference implementation."""
    matcher = ReferenceMatcher(grammar)
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def description(schema: Any, **options: Any) -> Description:
    """The description of the grammar of a schema."""
    grammar = json_schema(schema, **options)
    assert isinstance(grammar, Described)
    return grammar.description


def entries(schema: Any) -> dict[str, tuple[str, str]]:
    """A map from pointer to status and detail."""
    found = description(schema).entries
    assert all(entry.where.endswith(entry.keyword) or "%" in entry.where for entry in found)
    return {entry.where: (entry.status.value, entry.detail) for entry in found}


def test_every_keyword_is_listed_with_its_pointer() -> None:
    """Each occurrence of a keyword has one entry, in the order of the schema."""
    schema = {
        "title": "T",
        "type": "object",
        "properties": {"a/b": {"type": "string", "minLength": 1}, "c": {"items": [{"const": 1}]}},
        "anyOf": [{"required": ["c"]}, True],
        "$defs": {"x": {"minimum": 1}},
        "x-own": 1,
    }
    assert list(entries(schema).items()) == [
        ("#/title", ("annotation", "")),
        ("#/type", ("enforced", "")),
        ("#/properties", ("enforced", "")),
        ("#/properties/a~1b/type", ("enforced", "")),
        ("#/properties/a~1b/minLength", ("enforced", "")),
        ("#/properties/c/items", ("enforced", "")),
        ("#/properties/c/items/0/const", ("enforced", "")),
        ("#/anyOf", ("enforced", "")),
        ("#/anyOf/0/required", ("enforced", "")),
        ("#/$defs", ("annotation", "holds schemas for $ref")),
        ("#/$defs/x/minimum", ("annotation", "no value that can be written is judged by it")),
        ("#/x-own", ("annotation", "")),
    ]


@pytest.mark.parametrize(
    ("schema", "pointer", "status", "detail"),
    [
        ({"format": "date"}, "#/format", "enforced", ""),
        ({"format": "color"}, "#/format", "annotation", "'color' is not a format of the specification; not asserted"),
        ({"format": "hostname"}, "#/format", "enforced", "labels that begin with xn-- are"),
        ({"then": {}}, "#/then", "annotation", "has no effect without 'if'"),
        ({"if": {}, "then": {}}, "#/then", "enforced", ""),
        ({"if": {"const": 1}}, "#/if", "annotation", "has no effect without 'then' or 'else'"),
        ({"nullable": True}, "#/nullable", "annotation", "has no effect without 'type'"),
        ({"additionalItems": False}, "#/additionalItems", "annotation", "has no effect without an array under 'items'"),
        ({"items": [{}], "additionalItems": False}, "#/additionalItems", "enforced", ""),
        ({"contains": {"const": 1}, "maxContains": 2}, "#/maxContains", "enforced", ""),
        ({"minContains": 1}, "#/minContains", "annotation", "has no effect without 'contains'"),
        ({"type": "string", "uniqueItems": True}, "#/uniqueItems", "enforced", ""),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}}, "#/$defs/a/$ref", "annotation", "no value that can be written"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1},
            "#/const",
            "annotation",
            "not a keyword of draft 4",
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "minimum": 1,
             "definitions": {"a": {}}},
            "#/minimum",
            "annotation",
            "ignored beside $ref in draft 7",
        ),
    ],
)  # fmt: skip
def test_treatment_of_a_keyword(schema: Any, pointer: str, status: str, detail: str) -> None:
    """What is not simply enforced has a reason."""
    found = entries(schema)[pointer]
    assert found[0] == status
    assert found[1].startswith(detail)


def test_nothing_is_checked_or_silently_dropped() -> None:
    """Every entry is enforced or an annotation; everything else was refused."""
    schema = {"type": "object", "properties": {"a": {"pattern": "x", "maxLength": 3}}, "minProperties": 1}
    assert {entry.status for entry in description(schema).entries} == {Status.ENFORCED}


def test_description_survives_pickling_and_compares_by_content() -> None:
    """A description is a plain value."""
    one = description({"type": "string", "minLength": 1})
    assert pickle.loads(pickle.dumps(one)).entries == one.entries
    assert one == description({"type": "string", "minLength": 1})
    assert one != description({"type": "string"})
    assert (one.source, one.value, one.python_type) == ("json schema", "json", None)


def test_policies_are_stated() -> None:
    """Each choice that the schema leaves open is a line of the report."""
    lines = dict(description({}, whitespace="compact").policies)
    assert lines["draft"] == "draft 2020-12 with the forms of older drafts"
    assert lines["whitespace"].startswith("compact")
    assert {"property order", "repeated names", "escapes", "integers", "numbers", "constants", "format"} <= lines.keys()


# Whitespace

DOCUMENT = {"a": [1, {"b": None}, []], "c": {}, "d": {"e": [[2]]}}
CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "array"}, "c": {"const": {}}, "d": {"enum": [{"e": [[2]]}]}},
    "required": ["a", "c", "d"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [CLOSED, {}, {"type": "object"}])
def test_flexible_whitespace_holds_the_usual_styles(schema: Any) -> None:
    """Default, compact and pretty-printed texts are accepted; a second blank is not."""
    grammar = json_schema(schema)
    styles: list[dict[str, Any]] = [
        {},
        {"separators": (",", ":")},
        {"indent": "\t"},
        *({"indent": n} for n in range(9)),
    ]
    for style in styles:
        assert accepts(grammar, json.dumps(DOCUMENT, **style))
    text = json.dumps(DOCUMENT)
    assert accepts(grammar, text.replace(":", " :"))
    for broken in (
        " " + text,
        text + "\n",
        text.replace(": ", ":  "),
        text.replace(", ", ",\n\n"),
        text.replace("{", "{\t"),
    ):
        assert not accepts(grammar, broken)


def test_indentation_is_bounded() -> None:
    """A run of whitespace ends."""
    grammar = json_schema({"type": "array"}, policy=JsonPolicy(whitespace="flexible", indent=4))
    assert accepts(grammar, "[\n    1]")
    assert not accepts(grammar, "[\n     1]")


@pytest.mark.parametrize("schema", [CLOSED, {}, {"type": "object"}])
def test_compact_and_single_whitespace(schema: Any) -> None:
    """Each fixed style accepts exactly the text of that style."""
    compact, single = json.dumps(DOCUMENT, separators=(",", ":")), json.dumps(DOCUMENT)
    for whitespace, own, other in (("compact", compact, single), ("single", single, compact)):
        grammar = json_schema(schema, whitespace=whitespace)  # type: ignore[arg-type]  # one of the literals
        assert accepts(grammar, own)
        assert not accepts(grammar, other)


def test_policy_is_validated() -> None:
    """A policy with an unknown style or an invalid bound is an error."""
    for options in ({"whitespace": "wide"}, {"digits": 0}, {"indent": -1}, {"digits": True}):
        with pytest.raises(ValueError, match="JsonPolicy"):
            JsonPolicy(**options)


# The shape of the term


def rules_of(grammar: Grammar) -> dict[str, Grammar]:
    """The rules of the outermost binding."""
    assert isinstance(grammar, Described)
    return dict(grammar.item.rules) if isinstance(grammar.item, Rules) else {}


def test_rules_are_for_recursion_and_repeated_use() -> None:
    """A definition used once is inlined; one used twice or recursively is a rule."""
    once = {"$defs": {"a": {"properties": {"x": {"type": "null"}}}}, "items": {"$ref": "#/$defs/a"}}
    twice = {**once, "prefixItems": [{"$ref": "#/$defs/a"}]}
    recursive = {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "items": {"$ref": "#/$defs/a"}}
    assert rules_of(json_schema(once)) == {}
    assert list(rules_of(json_schema(twice))) == ["#/$defs/a"]
    assert list(rules_of(json_schema(recursive))) == ["#/$defs/a"]


def test_alternatives_that_were_proved_disjoint_leave_no_rules() -> None:
    """Rules that only the proof for ``oneOf`` needed are not part of the grammar."""
    item = {"type": "object", "properties": {"n": {"type": "array", "items": {"$ref": "#/$defs/i"}}}}
    one = {"$ref": "#/$defs/i", "properties": {"k": {"$ref": "#/$defs/k1"}}, "required": ["k"]}
    two = {"$ref": "#/$defs/i", "properties": {"k": {"$ref": "#/$defs/k2"}}, "required": ["k"]}
    schema = {"$defs": {"i": item, "k1": {"const": 1}, "k2": {"const": 2}}, "oneOf": [one, two]}
    grammar = json_schema(schema)
    used = {node.name for node in postorder(grammar) if isinstance(node, Reference)}
    assert set(rules_of(grammar)) <= used
    assert accepts(grammar, '{"n": [{"n": []}], "k": 2}')
    assert not accepts(grammar, '{"k": 3}')


def test_common_terms_are_shared_objects() -> None:
    """Free values, strings and punctuation are the same objects in every grammar of a policy."""
    syntax = syntax_of(AS_WRITTEN)
    grammar = json_schema({"type": "object", "properties": {"a": {}, "b": {"type": "integer"}, "c": {"type": "array"}}})
    shared = [node for node in postorder(grammar) if isinstance(node, Shared)]
    for term in (syntax.levels[0].value, syntax.any_integer, syntax.levels[0].array, syntax.comma, syntax.colon):
        assert any(node is term for node in shared)


@pytest.mark.parametrize("count", [50, 2_000])
def test_conjunctions_of_recursive_schemas_are_finite(count: int) -> None:
    """The conjunction of two recursive schemas is built once for each pair that meets."""
    schema = {
        "$defs": {
            "a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/b"}}, "required": ["v"]},
            "b": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}, "v": {"maximum": count}}},
        },
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    }
    grammar = json_schema(schema)
    assert accepts(grammar, '{"x": {"v": 1}, "v": 2}')
    assert not accepts(grammar, f'{{"x": {{"v": {count + 1}}}, "v": 2}}')
    assert not accepts(grammar, '{"x": {}, "v": 2}')
