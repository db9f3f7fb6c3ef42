"""Bounds of the policy, against jsonschema and a recursion over the value."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations, product
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import assume, given, settings, strategies as st
from schema_as_written import as_written as json_schema

from structgen.engine import Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
SCALARS = [1, "", "x", "yé", "zzz"]
LISTS = [list(items) for count in range(4) for items in product([1, "zzz"], repeat=count)]
SMALL = [*SCALARS, *LISTS, [[]], [[[]]], [[1, 1, 1]], {}, {"a": []}, {"zzz": {}}]
NAMES = ["a", "b", "x", "y", "long"]
OBJECTS = [
    dict(zip(names, values, strict=False))
    for names in ([], ["a"], ["x"], ["a", "b"], ["x", "y"], ["a", "x"], ["a", "b", "x", "y"], ["x", "y", "long"])
    for values in ([1] * 4, ["zzz", 1, [1], {}], [[[1]], {"b": {"a": 1}}, "x", 1], [{"x": 1, "y": 1}, "x", [[]], 1])
]
VALUES = [*SMALL, *OBJECTS]


def accepts(schema: Any, policy: JsonPolicy, value: Any) -> bool:
    """Whether ``value`` is accepted with its members in some order."""
    try:
        constraint = compile(json_schema(schema, policy=policy), BYTES)
    except UnsatisfiableGrammar:
        return False
    orders = [dict(pairs) for pairs in permutations(value.items())] if isinstance(value, dict) else [value]
    for one in orders:
        matcher, text = constraint.matcher(), json.dumps(one, ensure_ascii=False).encode()
        if matcher.accept_bytes(text) == len(text) and matcher.is_accepting:
            return True
    return False


def depth(value: Any) -> int:
    """How deeply arrays and objects nest."""
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


def keeps(value: Any, schema: Any, root: Any, policy: JsonPolicy) -> bool:
    """Whether a valid value is within all bounds except depth; ``schema`` has no alternatives except constants."""
    while isinstance(schema, dict) and "$ref" in schema:
        schema = root
    schema = schema if isinstance(schema, dict) else {}
    if "const" in schema:
        return True
    if isinstance(value, str):
        return policy.max_length is None or len(value) <= policy.max_length
    if isinstance(value, list):
        fits = policy.max_items is None or len(value) <= policy.max_items
        return fits and all(keeps(item, schema.get("items", True), root, policy) for item in value)
    if not isinstance(value, dict):
        return True
    declared = {*schema.get("properties", {}), *schema.get("required", [])}
    depending = schema.get("dependentRequired", {})
    declared.update(depending, *depending.values(), schema.get("not", {}).get("required", []))
    others = [name for name in value if name not in declared]
    if policy.max_members is not None and len(others) > policy.max_members:
        return False
    if policy.max_length is not None and any(len(name) > policy.max_length for name in others):
        return False
    inner = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    return all(keeps(item, inner.get(name, rest), root, policy) for name, item in value.items())


leaves: st.SearchStrategy[Any] = st.sampled_from(
    [True, {}, {"$ref": "#"}, {"type": "string", "maxLength": 2}, {"type": ["integer", "string"]}, {"const": "zzz"},
     {"type": "string", "minLength": 2}, {"const": {"x": [["zzz"]]}}]
)  # fmt: skip
counts = st.integers(0, 3)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.fixed_dictionaries({}, optional={"items": inner, "minItems": counts, "maxItems": counts})
    objects = st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "required": st.lists(st.sampled_from(["a", "x"]), unique=True, max_size=2),
            "additionalProperties": inner,
            "minProperties": st.integers(0, 2),
            "maxProperties": counts,
            "not": st.sampled_from([{"required": ["a"]}, {"maxProperties": 1}, {"additionalProperties": {"const": 1}}]),
            "dependentRequired": st.just({"a": ["b"]}),
        },
    )
    return st.one_of(arrays, objects, st.builds(lambda one, other: one | other, arrays, objects))


def policies() -> list[JsonPolicy]:
    """Only a few policies, because the terms of each are cached."""
    bounds = [
        (None, 2, 2, 2),
        (1, 1, 3, 0),
        (2, None, 1, 1),
        (3, 3, None, 3),
        (0, 0, 0, None),
        (None, None, None, None),
    ]
    plain = [JsonPolicy(max_depth=d, max_length=s, max_items=i, max_members=m) for d, s, i, m in bounds]
    free = [replace(policy, max_depth=None) for policy in plain]
    return [*plain, *free, *(replace(policy, order="any") for policy in (*plain, *free))]


@pytest.mark.exhaustive
@settings(max_examples=300)
@given(
    schema=st.recursive(leaves, containers, max_leaves=4),
    value=st.sampled_from(VALUES),
    policy=st.sampled_from(policies()),
)
def test_valid_values_within_the_bounds(schema: Any, value: Any, policy: JsonPolicy) -> None:
    """A value is accepted iff it is valid and within the bounds; constants are not bounded."""
    if schema == {"$ref": "#"}:
        return
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    is_within = keeps(value, schema, schema, policy)
    if policy.max_depth is not None and "const" not in json.dumps(schema):
        is_within &= depth(value) <= policy.max_depth
    elif policy.max_depth is not None:
        policy = replace(policy, max_depth=None)
    try:
        is_member = accepts(schema, policy, value)
    except UnsupportedFeature as refusal:
        assume(refusal.feature not in ("order", "minProperties"))
        raise
    assert is_member == (is_valid and is_within)


@pytest.mark.parametrize(
    ("schema", "bound", "message"),
    [
        ({"type": "string", "minLength": 9}, {"max_length": 5}, "'minLength' exceeds max_length=5 of the policy"),
        (
            {"type": "array", "minItems": 3},
            {"max_items": 2},
            "'minItems' asks for more .* by max_items=2 of the policy",
        ),
        ({"type": "object", "minProperties": 3}, {"max_members": 2}, "'minProperties' .* max_members=2 of the policy"),
        ({"items": {"type": "array"}, "type": "array", "minItems": 1}, {"max_depth": 1}, "deeper than max_depth=1"),
    ],
)
def test_what_is_required_stays_possible(schema: Any, bound: dict[str, int], message: str) -> None:
    """A bound that excludes every valid value is an error that names it and the keyword."""
    with pytest.raises(UnsatisfiableGrammar, match=message):
        json_schema(schema, policy=JsonPolicy(**bound))


@pytest.mark.parametrize("order", ["declared", "any"])
def test_undeclared_members_are_counted_beside_all_members(order: Literal["declared", "any"]) -> None:
    """The policy bounds the undeclared ones, the schema all of them."""
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 3, "minProperties": 1}
    policy = JsonPolicy(max_members=2, order=order)
    for value, is_member in (
        ({}, False),
        ({"x": 1, "a": 1, "y": 1}, True),
        ({"a": 1, "b": 1, "x": 1}, True),
        ({"a": 1, "b": 1, "x": 1, "y": 1}, False),
        ({"x": 1, "y": 1}, True),
        ({"x": 1, "y": 1, "z": 1}, False),
    ):
        assert accepts(schema, policy, value) == is_member, value


@pytest.mark.parametrize("order", ["declared", "any"])
@pytest.mark.parametrize(
    "more",
    [{"dependentRequired": {"b": ["a"]}}, {"not": {"required": ["a"], "properties": {"b": {"const": 1}}}}],
)
def test_undeclared_members_are_counted_where_more_is_remembered(
    order: Literal["declared", "any"], more: dict[str, Any]
) -> None:
    """The bound also holds where members require others, or where one of them must violate a schema."""
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, **more}
    policy = JsonPolicy(max_members=1, order=order)
    for value, is_member in (
        ({}, True),
        ({"x": 2}, True),
        ({"x": 2, "y": 2}, False),
        ({"a": 2, "b": 2, "x": 2}, True),
        ({"x": 2, "a": 2, "b": 2, "y": 2}, False),
        ({"a": 2, "x": 2, "b": 2, "y": 2}, False),
    ):
        assert accepts(schema, policy, value) == is_member, value


@pytest.mark.parametrize("limit", range(4))
def test_recursive_schemas_end(limit: int) -> None:
    """The root has depth one, and each step through a recursive reference adds one."""
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    value: Any = {}
    for step in range(1, 6):
        assert accepts(tree, JsonPolicy(max_depth=limit), value) == (step <= limit)
        assert accepts(True, JsonPolicy(max_depth=limit), value) == (step <= limit)
        value = {"next": value}


def test_bounds_are_reported() -> None:
    """Each bound is a line of the report, and so is the absence of a bound."""
    lines = dict(json_schema(True, policy=JsonPolicy(max_depth=3, max_length=80)).description.policies)
    assert lines["nesting"] == "at most 3 arrays and objects around each other"
    assert lines["length of strings"] == "at most 80 code points, of undeclared names too"
    assert lines["items"] == lines["undeclared members"] == "as the schema says"
    for name, value in (("max_depth", -1), ("max_items", True), ("max_members", 2_000), ("max_length", "9")):
        bad: Any = {name: value}
        with pytest.raises(ValueError, match=name):
            JsonPolicy(**bad)
