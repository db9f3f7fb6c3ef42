"""``x-guidance``: what llguidance reads in a schema with it is what we read; what cannot be honoured is refused."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.xml_arguments import read_xml_arguments, xml_arguments
from structgen.grammar.flattening import recognizes

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
BASE = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
GAPS = ["", " ", "\n", "  ", "\t\n "]
TEXTS = [
    f'{before}{{{first}"a"{key}1{mid}"b":{key_space}[{item}]{last}}}'
    for before, first, key, mid, key_space, item, last in [
        *((gap, "", ":", ",", "", "1,2", "") for gap in GAPS),
        *(("", gap, ":", ",", "", "1,2", "") for gap in GAPS),
        *(("", "", f"{gap}:{other}", ",", "", "", "") for gap, other in product(GAPS, GAPS)),
        *(("", "", ":", f"{gap},{other}", "", "1,2", "") for gap, other in product(GAPS, GAPS)),
        *(("", "", ":", ",", gap, f"{other}1{gap},{other}2", "") for gap, other in product(GAPS, GAPS)),
        *(("", "", ": ", ", ", " ", item, gap) for gap, item in product(GAPS, ["1,2", "1, 2", "1 ,2", " ", ""])),
    ]
]
OPTIONS: list[dict[str, Any]] = [
    {"whitespace_flexible": True},
    {"whitespace_flexible": False},
    {"item_separator": ", "},
    {"item_separator": ", ", "key_separator": ": "},
    {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False},
    {"item_separator": ",[ ]?", "key_separator": "[ \\n]?:", "whitespace_flexible": False},
    {"whitespace_pattern": "[ ]*"},
    {"whitespace_pattern": " "},
    {"whitespace_pattern": "\\n|\\x20\\x20", "whitespace_flexible": False},
    {"whitespace_pattern": None, "whitespace_flexible": False, "lenient": True},
]


def reads(schema: Any, texts: list[str]) -> list[bool]:
    constraint = compile(json_schema(schema), BYTES)
    found = []
    for text in texts:
        matcher, data = constraint.matcher(), text.encode()
        found.append(matcher.accept_bytes(data) == len(data) and matcher.is_accepting)
    return found


def llguidance_reads(schema: Any, texts: list[str]) -> list[bool]:
    llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed")
    tokenizer = llguidance.LLTokenizer("byte")
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    found = []
    for text in texts:
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        assert not matcher.is_error(), matcher.get_error()
        found.append(all(matcher.try_consume_tokens([byte]) for byte in text.encode()) and matcher.is_accepting())
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=json.dumps)
def test_white_space_as_llguidance_reads_it(options: dict[str, Any]) -> None:
    schema = {**BASE, "x-guidance": options}
    verdicts = reads(schema, TEXTS)
    assert verdicts == llguidance_reads(schema, TEXTS)
    assert any(verdicts)
    assert not all(verdicts)


def test_one_of_is_any_of_where_the_schema_says_so() -> None:
    schema = {"items": {"oneOf": [{"type": "integer"}, {"type": "number"}, {"const": "x"}]}, "type": "array"}
    texts = ["[1]", "[1.5]", '["x"]', '["y"]']
    assert reads(schema, texts) == [False, True, True, False]
    coerced = {**schema, "x-guidance": {"coerce_one_of": True}}
    assert reads(coerced, texts) == [True, True, True, False] == llguidance_reads(coerced, texts)
    details = {entry.where: entry.detail for entry in json_schema(coerced).description.entries}
    assert details["#/items/oneOf"] == "read as 'anyOf', as 'x-guidance' says"
    assert details["#/x-guidance"] == "'oneOf' is read as 'anyOf'"


def test_without_options_of_white_space_the_policy_decides() -> None:
    policies = dict(json_schema({"x-guidance": {"lenient": True}}, policy=JsonPolicy("compact")).description.policies)
    assert policies["whitespace"].startswith("compact")
    guided = json_schema({"x-guidance": {"item_separator": ", ?"}}, policy=JsonPolicy("indented", indent="\t"))
    assert dict(guided.description.policies)["whitespace"].startswith("any: ', ?' between members, ':' after a name")


def test_a_lenient_schema_is_refused_where_a_strict_one_is() -> None:
    with pytest.raises(UnsupportedFeature, match="#/pattern"):
        json_schema({"type": "string", "pattern": "(a)\\1", "x-guidance": {"lenient": True}})


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"allOf": [{"type": "string", "x-guidance": {}}]}, "#/allOf/0/x-guidance"),
        ({"properties": {"a": {"type": "string", "x-guidance": {}}}}, "#/properties/a/x-guidance"),
        ({"patternProperties": {"a": {"x-guidance": {}}}}, "#/patternProperties/a/x-guidance"),
        ({"$defs": {"a": {"x-guidance": {}}}, "items": {"$ref": "#/$defs/a"}}, "#/$defs/a/x-guidance"),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "items": {"$ref": "#/definitions/a", "x-guidance": {}},
                "definitions": {"a": {}},
            },
            "#/items/x-guidance",
        ),
        ({"x-guidance": {"item_separator": ";"}}, "#/x-guidance/item_separator"),
        ({"x-guidance": {"key_separator": "[:=]"}}, "#/x-guidance/key_separator"),
        ({"x-guidance": {"whitespace_pattern": "_"}}, "#/x-guidance/whitespace_pattern"),
        ({"x-guidance": {"json_allowed_escapes": "n"}}, "#/x-guidance/json_allowed_escapes"),
        ({"x-guidance": {"json_allow_general_unicode_escapes": True}}, "#/x-guidance/json_allow_general"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_pointer(schema: dict[str, Any], where: str) -> None:
    with pytest.raises(UnsupportedFeature) as refused:
        json_schema(schema)
    assert refused.value.feature == "x-guidance"
    assert refused.value.where.startswith(where)
    assert where in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"item_seperator": ","}, "is 'item_separator' meant"),
        ({"item_separator": 1}, "must be a regular expression; found 1"),
        ({"whitespace_flexible": None}, "must be true or false; found None"),
        (None, "'x-guidance' must be an object; found None"),
        (["lenient"], "'x-guidance' must be an object"),
    ],
)
def test_malformed_options(options: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        json_schema({"x-guidance": options})


def test_a_member_of_that_name_and_a_schema_that_nothing_refers_to_are_left_alone() -> None:
    assert reads({"properties": {"x-guidance": {"type": "null"}}}, ['{"x-guidance": null}']) == [True]
    (entry,) = json_schema({"$defs": {"a": {"x-guidance": {}}}, "type": "null"}).description.entries[1:2]
    assert (entry.where, entry.detail) == ("#/$defs/a/x-guidance", "no value that can be written is judged by it")


def test_root_of_references_and_arguments() -> None:
    """The root stays the root where references depend on the dynamic scope, and where arguments are read back."""
    options = {"x-guidance": {"whitespace_flexible": False}}
    tree = {"$id": "http://x/a", "$dynamicAnchor": "n", "type": "object", "properties": {"c": {"$dynamicRef": "#n"}}}
    grammar = json_schema({**tree, **options})
    assert recognizes(grammar, '{"c":{"c":{}}}')
    assert not recognizes(grammar, '{"c": {}}')
    schema = {"properties": {"a": {"type": "array", "items": {"type": "integer"}}}, **options}
    for text, expected in (("[1,2]", True), ("[1, 2]", False)):
        assert recognizes(xml_arguments(schema, "qwen_xml"), f"<parameter=a>{text}</parameter>") is expected
    assert read_xml_arguments("<parameter=a>[1,2]</parameter>", "qwen_xml", schema) == {"a": [1, 2]}
