"""Instances are brought into the order of the schema's names, whatever order they have."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from structgen.testing.instance_order import declared_order, declared_orders

ONE, TWO = {"properties": {"a": {}, "b": {}}}, {"properties": {"c": {}, "a": {}}}


@pytest.mark.parametrize(
    ("schema", "order"),
    [
        ({"properties": {"c": {}, "a": {}, "b": {}}}, "cab"),
        ({"required": ["b"], "properties": {"c": {}, "a": {}}}, "cab"),
        ({"allOf": [TWO], "properties": {"b": {}}}, "cab"),
        ({"properties": {"b": {}}, "allOf": [TWO]}, "bca"),
        ({"$ref": "#/$defs/x", "properties": {"b": {}}, "$defs": {"x": TWO}}, "cab"),
        ({"anyOf": [{"properties": {"a": False}}, TWO], "required": ["b"]}, "cab"),
        ({"if": {"required": ["a"]}, "then": TWO, "else": ONE, "properties": {"b": {}}}, "bca"),
        ({"not": {"required": ["x"], **TWO}, "properties": {"b": {}}}, "bca"),
        ({"dependentRequired": {"a": ["c", "b"]}}, "cba"),
        ({"dependentSchemas": {"b": TWO}}, "bca"),
    ],
)
def test_declared_order(schema: dict[str, Any], order: str) -> None:
    """Own names come at the place of ``properties``, required ones after them, those of conditions last."""
    for names in permutations("abc"):
        assert "".join(declared_order(dict.fromkeys(names, 1), schema)) == order


def test_undeclared_names_and_inner_values() -> None:
    """Undeclared names keep their order after the declared ones; items and members are ordered too."""
    schema = {"items": {"properties": {"a": {}, "x": ONE}}}
    data = [{"z": 1, "x": {"b": 1, "a": 1}, "y": 2, "a": 3}]
    assert json.dumps(declared_order(data, schema)) == '[{"a": 3, "x": {"a": 1, "b": 1}, "z": 1, "y": 2}]'


def test_names_of_alternatives_that_are_not_taken() -> None:
    """There is one order, except where an alternative that is not taken names more than the taken one."""
    data = {"b": 1, "c": 1, "a": 1}
    assert [list(one) for one in declared_orders(data, ONE)] == [["a", "b", "c"]]
    schema = {"anyOf": [{"properties": {"b": {}}}, {"properties": {"a": {}, "c": {}}}]}
    assert [list(one) for one in declared_orders(data, schema)] == [["b", "c", "a"], ["b", "a", "c"]]
