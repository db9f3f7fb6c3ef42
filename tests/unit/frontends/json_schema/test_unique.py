"""``uniqueItems`` over finitely many values and over others, against jsonschema."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import jsonschema
import jsonschema_rs
import pytest
from hypothesis import given, strategies as st

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.nodes import Distinct, Permutation, postorder

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
ITEMS = ["a", "ab", 1, 2, 12, True, False, None, 0, "c"]
NESTED = ["a", [], ["a"], [1.0], {}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, [True], [1]]
LISTS = [list(items) for count in range(4) for items in product(ITEMS, repeat=count)]


def accepts(constraint: Constraint, text: str) -> bool:
    matcher = constraint.matcher()
    return matcher.accept_bytes(text.encode()) == len(text.encode()) and matcher.is_accepting


def check(schema: dict[str, Any]) -> bool:
    """Compare the accepted short lists with jsonschema; return whether the schema compiled."""
    validator = jsonschema.Draft202012Validator(schema)
    try:
        constraint: Constraint | None = compile(json_schema(schema), BYTES)
    except UnsatisfiableGrammar:
        constraint = None
    except UnsupportedFeature:
        return False
    for items in LISTS:
        found = constraint is not None and accepts(constraint, json.dumps(items))
        assert found == validator.is_valid(items), (schema, items)
    return True


members = st.sampled_from(["a", "ab", 1, 1.0, 2, 12, True, None, 0])
finite = st.one_of(
    st.lists(members, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    members.map(lambda value: {"const": value}),
    st.sampled_from([{"type": "boolean"}, {"type": ["boolean", "null"]}, False]),
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size}, *[st.integers(-1, 2)] * 2),
)
anything = st.one_of(
    finite,
    st.builds(lambda one, other: {"anyOf": [one, other]}, finite, finite),
    st.builds(lambda one, other: {"oneOf": [one, other]}, finite, finite),
    st.sampled_from([{"type": "string"}, {"type": "integer", "minimum": 3}, True]),
)
arrays = st.fixed_dictionaries(
    {"items": anything},
    optional={
        "prefixItems": st.lists(anything, min_size=1, max_size=3),
        "minItems": st.integers(0, 3),
        "maxItems": st.integers(0, 4),
    },
)


@pytest.mark.exhaustive
@given(arrays)
def test_each_value_at_most_once(schema: dict[str, Any]) -> None:
    """Constants, booleans, null and short intervals, unions of these, and prefixes agree."""
    check({"type": "array", "uniqueItems": True, **schema})


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"enum": ["a", "ab", 1]}, "minItems": 2},
        {"items": {"enum": [1, 1.0, 2]}, "minItems": 2},
        {"items": {"type": "integer", "minimum": 0, "maximum": 2}, "maxItems": 2},
        {"items": {"type": ["boolean", "null"]}},
        {"prefixItems": [{"type": "string"}], "items": {"type": "boolean"}},
        {"prefixItems": [{"enum": [1, 2]}, {"enum": [2, 12]}], "items": {"enum": [1, 2, 12]}, "minItems": 2},
        {"prefixItems": [{"enum": [1, 2]}, {"type": "string"}, {"enum": [1, 2]}], "items": False},
        {"items": {"oneOf": [{"const": 1}, {"const": "a"}]}, "minItems": 1},
        {"prefixItems": [{}], "items": False},
    ],
)
def test_named_cases(schema: dict[str, Any]) -> None:
    """These compile and agree with jsonschema."""
    assert check({"type": "array", "uniqueItems": True, **schema})


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"items": {"type": "string"}},
        {"items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        {"items": {"type": "integer", "minimum": 0}},
        {"items": {"type": "number", "minimum": 0, "maximum": 1}},
        {"items": {"anyOf": [{"type": "string", "pattern": "^a"}, {"enum": [1, 2]}]}},
        {"prefixItems": [{"type": "string"}], "items": {"enum": ["a", 1]}},
        {"prefixItems": [{}, {"const": 1}]},
        {"items": {"enum": [1, 2]}, "contains": {"const": 1}},
    ],
)
def test_items_of_other_schemas_are_compared(schema: dict[str, Any]) -> None:
    """Where the values are many, or not provably different, the report says that they are checked."""
    whole = {"type": "array", "uniqueItems": True, **schema}
    assert check(whole)
    entries = {entry.where: entry.status.value for entry in json_schema(whole).description.entries}
    assert entries["#/uniqueItems"] == "checked"


def test_few_values_need_no_check() -> None:
    """The automaton alone enforces them."""
    schema = {"type": "array", "items": {"enum": ["a", 1]}, "uniqueItems": True, "minItems": 2}
    kinds = {type(node) for node in postorder(json_schema(schema))}
    assert Permutation in kinds
    assert Distinct not in kinds


def test_containers_are_compared() -> None:
    """Arrays are compared in order, objects without order, and true is not 1."""
    lists = [list(items) for count in range(4) for items in product(NESTED, repeat=count)]
    schema = {"type": "array", "uniqueItems": True}
    constraint, validator = compile(json_schema(schema), BYTES), jsonschema_rs.validator_for(schema)
    for items in lists:
        assert accepts(constraint, json.dumps(items)) == validator.is_valid(items), items


def test_alternatives_may_repeat() -> None:
    """A repetition excludes only the alternative that forbids it."""
    one = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    assert check({"anyOf": [one, {"type": "array", "items": {"type": ["string", "null"]}, "maxItems": 2}]})


def test_a_name_that_repeats_is_no_item() -> None:
    """Inside such an array no object repeats a name, so that all readers agree on its value."""
    constraint = compile(json_schema({"type": "array", "items": {}, "uniqueItems": True}), BYTES)
    assert accepts(constraint, '[{"a": 1, "b": 1}]')
    assert not accepts(constraint, '[{"a": 1, "a": 1}]')
    assert not accepts(constraint, '[[{"b": {"a": 1, "\\u0061": 2}}]]')


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"type": "string"}, "minItems": 2},
        {"contains": {"type": "string"}, "minContains": 2},
        {"items": {"type": "string"}, "not": {"maxItems": 3}},
    ],
)
def test_several_required_items_are_compared_too(schema: dict[str, Any]) -> None:
    """Where the values are many and more than one is required, a completion is searched for."""
    assert check({"type": "array", "uniqueItems": True, **schema})


def test_prefixes_with_many_values_in_common() -> None:
    """Positions whose values would make too many states are compared while they are written."""
    schema = {"prefixItems": [{"enum": list(range(40))}] * 8, "items": False, "minItems": 3, "uniqueItems": True}
    constraint = compile(json_schema({"type": "array", **schema}), BYTES)
    assert accepts(constraint, "[0, 39, 1, 38, 2]")
    assert not accepts(constraint, "[0, 39, 1, 38, 0]")
    assert not accepts(constraint, "[0, 39]")
    few = {"prefixItems": [{"enum": [0, 1]}] * 3, "items": {"pattern": "^a$"}, "minItems": 6, "uniqueItems": True}
    with pytest.raises(UnsatisfiableGrammar):
        compile(json_schema({"type": "array", **few}), BYTES)


def test_two_spellings_are_one_item() -> None:
    """1 and 1.0 are one value, and so are 0 and -0."""
    constants = compile(json_schema({"type": "array", "items": {"enum": [1.0, 2]}, "uniqueItems": True}), BYTES)
    assert all(accepts(constants, text) for text in ("[1]", "[1.0]", "[1.0, 2]", "[2, 1]"))
    assert not any(accepts(constants, text) for text in ("[1, 1.0]", "[1.0, 1]", "[2, 2]"))
    interval = {"type": "array", "items": {"type": "integer", "minimum": -1, "maximum": 1}, "uniqueItems": True}
    integers = compile(json_schema(interval), BYTES)
    assert all(accepts(integers, text) for text in ("[-0, -1, 1]", "[0]"))
    assert not accepts(integers, "[0, -0]")


def test_all_forms_of_numbers() -> None:
    """Numbers in all their forms may be items, and all forms of a number are one item."""
    schemas = [
        {"type": "array", "items": {"enum": [0, 10]}, "uniqueItems": True},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 10}, "uniqueItems": True},
    ]
    for schema in schemas:
        constraint = compile(json_schema(schema, policy=JsonPolicy(numbers="all")), BYTES)
        assert all(accepts(constraint, text) for text in ("[1e1, 0]", "[0.0, 10.0]", "[-0.0, 10]", "[100e-1]"))
        assert not any(accepts(constraint, text) for text in ("[10, 1e1]", "[0, -0.0]", "[0e3, 0.00]"))


def test_compound_constants() -> None:
    """Arrays and objects are distinguished by value; the members of an object have no order."""
    schema = {"type": "array", "items": {"enum": [[1], [1.0], {"a": 1, "b": 2}, {"b": 2, "a": 1}]}, "uniqueItems": True}
    constraint = compile(json_schema(schema, order="any"), BYTES)
    assert accepts(constraint, '[{"b": 2, "a": 1}, [1.0]]')
    assert not accepts(constraint, '[{"b": 2, "a": 1}, {"a": 1, "b": 2}]')
    assert not accepts(constraint, "[[1], [1.0]]")


def test_too_few_values_are_unsatisfiable() -> None:
    """Three booleans cannot be different."""
    schema = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3}
    with pytest.raises(UnsatisfiableGrammar, match="there are fewer values than 'minItems' asks for"):
        json_schema(schema)


def test_two_hundred_integers_end_without_a_dead_end() -> None:
    """All values come in turn; after the last only the end is left."""
    schema = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 200}, "uniqueItems": True}
    matcher = compile(json_schema(schema, whitespace="compact"), BYTES).matcher()
    order = [(number * 77) % 200 + 1 for number in range(200)]
    for place, number in enumerate(order):
        comma = "," if place else "["
        for other in (order[place - 1], number):
            text = f"{comma}{other},"
            fits = matcher.fork().accept_bytes(text.encode()) == len(text)
            assert fits == (other not in order[:place] and place < 199), text
        assert matcher.accept_bytes(f"{comma}{number}".encode()) == len(f"{comma}{number}")
    assert matcher.forced_bytes() == b"]"
    assert matcher.accept_bytes(b"]") == 1
    assert matcher.is_accepting
