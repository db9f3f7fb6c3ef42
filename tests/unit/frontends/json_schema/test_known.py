"""Caches between schemas: whole grammars by content, and the plans of leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from structgen.errors import GrammarError
from structgen.frontends.json_schema import forget_known, json_schema
from structgen.frontends.json_schema.source.json_value import copied
from structgen.frontends.structural_tag import structural_tag
from structgen.frontends.xml_arguments import xml_arguments
from structgen.grammar.flattening import recognizes
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Status
from structgen.memory_cache import ContentCache

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "integer"}}}


def test_equal_texts_give_the_same_grammar_until_it_is_forgotten() -> None:
    """A text or dictionary that was compiled before is found in the cache."""
    text = json.dumps(SCHEMA)
    first = json_schema(text)
    assert json_schema(str(text.encode(), "utf-8")) is first
    assert json_schema(text.encode()) is first
    assert json_schema(text, whitespace="compact") is not first
    assert json_schema(text, limits=Limits(nesting=5)) is not first
    forget_known()
    again = json_schema(text)
    assert again is not first
    assert again == first


def test_a_dictionary_may_change_after_it_was_compiled() -> None:
    """The grammar and its report do not follow the change, and the changed schema is compiled anew."""
    schema: dict[str, Any] = {"type": "object", "properties": {"kept": {"type": "string"}}}
    before = json_schema(schema)
    assert isinstance(before, Described)
    schema["properties"]["other"] = {"type": "integer"}
    after = json_schema(schema)
    assert after != before
    assert not any("other" in entry.where for entry in before.description.entries)
    assert isinstance(after, Described)
    assert any("other" in entry.where for entry in after.description.entries)


def _as_tag(schema: dict[str, Any]) -> Grammar:
    return structural_tag({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def _as_arguments(schema: dict[str, Any]) -> Grammar:
    return xml_arguments({"type": "object", "properties": {"a": schema}, "required": ["a"]}, "qwen_xml")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (json_schema, '"{}"'),
        (lambda schema: json_schema({"not": {"type": "null"}, **schema}), '"{}"'),
        (_as_tag, '"{}"'),
        (_as_arguments, "<parameter=a>{}</parameter>"),
    ],
)
def test_a_dictionary_that_changes_while_it_is_compiled_is_that_of_one_moment(
    read: Callable[[dict[str, Any]], Grammar], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may change it at any time; the grammar is that of the content for which it is found again."""
    look_up, inner = ContentCache.get, {"enum": ["before"]}  # the list changes, whatever dictionary it is in

    def look_up_later(cache: ContentCache[Any], key: Any) -> Any:
        inner["enum"][0] = "after"
        return look_up(cache, key)

    forget_known()
    with monkeypatch.context() as patch:
        patch.setattr(ContentCache, "get", look_up_later)
        first = read(inner)
    assert inner["enum"] == ["after"]
    for grammar in (first, read({"enum": ["before"]})):
        assert recognizes(grammar, text.format("before"))
        assert not recognizes(grammar, text.format("after"))


def test_a_copy_of_a_schema_shares_no_container_with_it() -> None:
    """Equal parts stay equal and one object stays one object, in circles too."""
    shared: dict[str, Any] = {"enum": [1, (2, [3])]}
    schema: dict[str, Any] = {"anyOf": [shared, shared], "title": "x"}
    schema["circle"] = [schema]
    made = copied(schema)
    assert made["anyOf"] == [{"enum": [1, [2, [3]]]}] * 2
    assert made["anyOf"][0] is made["anyOf"][1]
    assert made["circle"][0] is made
    assert made["title"] == "x"
    shared["enum"].append(4)
    schema["anyOf"].clear()
    assert made["anyOf"] == [{"enum": [1, [2, [3]]]}] * 2


def test_a_dictionary_whose_parts_are_one_object_is_not_spelled_out() -> None:
    """Thirty levels of two references to one object would expand to a billion objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(30):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}}
    assert json_schema(schema) == json_schema(schema)


@pytest.mark.parametrize(
    ("valid", "other"),
    [
        ({"minimum": 1}, {"minimum": True}),
        ({"type": ["string"]}, {"type": ["text"]}),
        ({"type": "string", "maxLength": 0}, {"type": "string", "maxLength": False}),
    ],
)
def test_leaves_with_equal_keys_are_told_apart(valid: Any, other: Any) -> None:
    """In Python ``1 == True``; in a schema one of them is an error, whatever was read before."""
    json_schema({"items": valid})
    with pytest.raises(GrammarError):
        json_schema({"items": other})


def test_a_leaf_that_was_known_is_reported_as_enforced() -> None:
    """The report does not depend on schemas that were read before."""
    for name in "ab":
        grammar = json_schema({"properties": {name: {"type": "string", "maxLength": 4}}})
        assert isinstance(grammar, Described)
        status = {entry.where: entry.status for entry in grammar.description.entries}
        assert status[f"#/properties/{name}/maxLength"] is Status.ENFORCED
