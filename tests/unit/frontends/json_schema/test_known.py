"""Caches between schemas: whole grammars by content, and the plans of leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from structgen.errors import GrammarError
from structgen.frontends.json_schema import forget_known, json_schema
from structgen.grammar.limits import Limits
from structgen.grammar.nodes.description import Described, Status

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
