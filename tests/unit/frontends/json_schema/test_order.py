"""Objects in any order: every order of every valid object (by jsonschema), and nothing else."""

from __future__ import annotations

import json
from itertools import permutations, product
from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel
from schema_as_written import as_written as json_schema

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy
from structgen.grammar.nodes import Grammar, Permutation, postorder

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
NAMES = "abz"
VALUES = [1, "x"]


def accepted(grammar: Grammar, texts: list[str]) -> list[str]:
    """The ``texts`` that are accepted."""
    try:
        constraint = compile(grammar, BYTES)
    except UnsatisfiableGrammar:  # the front end proves less than the engine
        return []
    found = []
    for text in texts:
        matcher = constraint.matcher()
        if matcher.accept_bytes(text.encode()) == len(text.encode()) and matcher.is_accepting:
            found.append(text)
    return found


def every_object() -> list[tuple[dict[str, Any], str]]:
    """All objects with some of three names and one of two values each, in all orders."""
    found = []
    for count in range(len(NAMES) + 1):
        for names in permutations(NAMES, count):
            for values in product(VALUES, repeat=count):
                value = dict(zip(names, values, strict=True))
                found.append((value, json.dumps(value)))
    return found


OBJECTS = every_object()


def check(schema: Any) -> None:
    """Compare the accepted small objects with jsonschema."""
    valid = [text for value, text in OBJECTS if jsonschema.Draft202012Validator(schema).is_valid(value)]
    try:
        grammar = json_schema(schema, order="any")
    except UnsatisfiableGrammar:
        assert valid == []
        return
    except UnsupportedFeature as refusal:
        # Nothing is refused that the declared order enforces, except for the number of alternatives.
        if refusal.feature != "order":
            with pytest.raises(UnsupportedFeature):
                json_schema(schema)
        return
    assert accepted(grammar, [text for _, text in OBJECTS]) == valid, schema


values = st.sampled_from([True, False, {"const": 1}, {"const": "x"}, {"type": "string"}, {}])
names = st.sampled_from(NAMES)
sizes = st.integers(0, 3)
plain = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(names, values, max_size=3),
        "required": st.lists(names, max_size=2, unique=True),
        "additionalProperties": values,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "z", "b|z"]), values, max_size=2),
        "propertyNames": st.just({"enum": ["a", "b"]}),
        "minProperties": st.integers(0, 2),
        "maxProperties": sizes,
        "dependentRequired": st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=2),
    },
)
schemas = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.builds(lambda one, other: {**one, "allOf": [other]}, plain, inner),
        st.builds(lambda one, other: {**one, "not": other}, plain, inner),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, plain, plain, plain),
    ),
    max_leaves=3,
)


@given(schemas)
def test_every_order_of_every_valid_object(schema: dict[str, Any]) -> None:
    """Declared, pattern and undeclared names, counts, conditions and negations."""
    check({"type": "object", **schema})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}, "b": {}}, "required": ["b"], "additionalProperties": False},
        {"properties": {"a": {"const": 1}}, "required": ["z"], "minProperties": 2},
        {"not": {"required": ["a", "b"]}},
        {"not": {"properties": {"a": {"const": 1}, "b": {"const": "x"}}, "required": ["z"]}},
        {"dependentRequired": {"a": ["b"], "b": ["z"], "z": ["a"]}},
        {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}},
        {"not": {"additionalProperties": {"const": 1}, "maxProperties": 2}, "properties": {"a": {"type": "string"}}},
        {"allOf": [{"not": {"additionalProperties": {"const": 1}}}, {"not": {"additionalProperties": {"const": "x"}}}]},
        {"properties": {"a": False, "b": {}}, "maxProperties": 1},
    ],
)
def test_named_cases(schema: dict[str, Any]) -> None:
    """Conditions on several members at once."""
    check({"type": "object", **schema})


def test_a_name_never_repeats() -> None:
    """A declared name occurs at most once, in canonical spelling; undeclared ones may repeat, as always."""
    grammar = json_schema({"type": "object", "properties": {"a": {}, "b": {}}}, order="any")
    texts = ['{"a": 1, "a": 1}', '{"a": 1, "b": 1, "a": 1}', '{"\\u0061": 1}', '{"z": 1, "z": 1}', "{}"]
    assert accepted(grammar, texts) == texts[3:]


def test_members_of_constants_come_in_any_order_too() -> None:
    """The order of members in a constant has no meaning."""
    schema = {"enum": [{"a": 1, "b": {"c": [{"d": 1, "e": 2}], "f": 3}}, {}]}
    texts = [
        '{"b": {"f": 3, "c": [{"e": 2, "d": 1}]}, "a": 1}',
        '{"a": 1, "b": {"c": [{"d": 1, "e": 2}], "f": 3}}',
        "{}",
        '{"b": {"f": 3, "c": [{"e": 2}]}, "a": 1}',
    ]
    assert accepted(json_schema(schema, order="any"), texts) == texts[:3]
    assert accepted(json_schema(schema), texts) == texts[1:3]


def test_python_types() -> None:
    """A type is described by its schema, so its fields come in any order as well."""

    class Point(BaseModel):
        x: int
        y: int = 0

    grammar = json_schema(Point, order="any")
    texts = ['{"y": 1, "x": 2}', '{"x": 2}', '{"y": 1}']
    assert accepted(grammar, texts) == texts[:2]
    assert Point.model_validate_json(texts[0]) == Point(x=2, y=1)


def test_the_report_says_so() -> None:
    """The policy is a line of the report, and an unknown one is refused."""
    schema = {"type": "object", "properties": {"a": {}}}
    assert dict(json_schema(schema, order="any").description.policies)["property order"].startswith("any")
    policy = JsonPolicy(order="any", whitespace="compact")
    assert json_schema(schema, policy=policy) == json_schema(schema, order="any", whitespace="compact")
    assert json_schema(schema, order="declared") == json_schema(schema)
    with pytest.raises(ValueError, match="order is 'random'; give one of declared, any"):
        JsonPolicy(order="random")  # type: ignore[arg-type]


def test_many_conditions_are_refused_by_name() -> None:
    """A condition on an order that would make too many alternatives is refused with a solution."""
    schema = {"dependentRequired": {f"a{index}": [f"b{index}"] for index in range(9)}}
    json_schema(schema)
    with pytest.raises(UnsupportedFeature, match='use order="declared"') as caught:
        json_schema(schema, order="any")
    assert caught.value.feature == "order"


def test_the_declared_order_has_no_permutations() -> None:
    """With the declared order nothing changes."""
    schema = {"type": "object", "properties": {"a": {}, "b": {"const": {"c": 1, "d": 2}}}}
    assert not any(isinstance(node, Permutation) for node in postorder(json_schema(schema)))
    assert any(isinstance(node, Permutation) for node in postorder(json_schema(schema, order="any")))


def test_emptiness_does_not_depend_on_the_order() -> None:
    """A schema without values in the declared order has none in any order."""
    for schema in (
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "object", "minProperties": 3, "maxProperties": 2},
        {"type": "object", "additionalProperties": False, "minProperties": 1},
        {"allOf": [{"type": "object", "required": ["a"]}, {"not": {"required": ["a"]}}]},
    ):
        for order in ("declared", "any"):
            with pytest.raises(GrammarError):
                json_schema(schema, order=order)
