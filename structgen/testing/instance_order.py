"""The order of members in instances: as a schema declares them, or any."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any, Final

import jsonschema
import referencing.exceptions

__all__ = ["declared_order", "declared_orders", "shuffled"]

_MAX_DEPTH: Final = 50
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
"""A dynamic reference is taken for a plain one; the order of names seldom depends on which schema it leads to."""
_CONDITIONS: Final = ("not", "if", "dependentSchemas", "dependencies")
"""Keywords whose schemas need not hold; the names that they mention come after all others."""


def declared_order(data: Any, schema: Any) -> Any:
    """Return ``data`` with the members of its objects in the order in which the schema declares them.

    Order has no meaning in JSON but is part of the language, so instances are brought into it first.  Which
    alternative of an ``anyOf`` an object takes is decided by ``jsonschema``.
    """
    return _Ordering(schema, rivals=False).ordered(data, [schema])


def declared_orders(data: Any, schema: Any) -> Iterator[Any]:
    """Yield ``data`` in each order that may be meant.

    That is one order, but where alternatives overlap: there those that were not taken may declare names as well.
    """
    ordering = _Ordering(schema, rivals=False)
    first = ordering.ordered(data, [schema])
    yield first
    if ordering.has_chosen:
        second = _Ordering(schema, rivals=True).ordered(data, [schema])
        if json.dumps(first) != json.dumps(second):  # equality does not look at the order
            yield second


def shuffled(data: Any, rng: random.Random) -> Any:
    """Return ``data`` with the members of all objects in random order."""
    if isinstance(data, list):
        return [shuffled(item, rng) for item in data]
    if not isinstance(data, dict):
        return data
    return {name: shuffled(data[name], rng) for name in rng.sample(list(data), len(data))}


class _Ordering:
    def __init__(self, root: Any, *, rivals: bool) -> None:
        self.root = root
        self.rivals = rivals
        self.has_chosen = False
        self.validator = jsonschema.validators.validator_for(root, default=jsonschema.Draft202012Validator)(root)

    def ordered(self, data: Any, schemas: list[Any]) -> Any:
        applied = [inner for schema in schemas for inner in self.applied(schema, data, 0)]
        if isinstance(data, list):
            return [self.ordered(item, list(self.items(applied, index))) for index, item in enumerate(data)]
        if not isinstance(data, dict):
            return data
        names = [name for schema in applied for name in schema.get("properties", {})]
        names += [name for schema in applied for name in schema.get("required", [])]
        names += [name for schema in applied for name in _dependents(schema)]
        rank = {name: index for index, name in reversed(list(enumerate(names)))}
        declared = sorted((name for name in data if name in rank), key=rank.__getitem__)
        others = [name for name in data if name not in rank]
        return {name: self.ordered(data[name], list(self.members(applied, name))) for name in declared + others}

    def applied(self, schema: Any, data: Any, depth: int) -> Iterator[dict[str, Any]]:
        """The schema objects that apply to ``data`` in place, in the order of the keywords, conditions last."""
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return
        if "properties" not in schema:
            yield schema
        for keyword, value in schema.items():
            if keyword == "properties":
                yield schema
            elif keyword in _REFERENCES and isinstance(value, str):
                yield from self.applied(self.target(value), data, depth + 1)
            elif keyword == "allOf":
                for inner in value:
                    yield from self.applied(inner, data, depth + 1)
            elif keyword in ("anyOf", "oneOf"):
                for inner in self.fitting(value, data):
                    yield from self.applied(inner, data, depth + 1)
        for keyword in schema:
            if keyword in _CONDITIONS:
                for inner in self.conditions(schema, keyword, data):
                    yield from self.applied(inner, data, depth + 1)

    def conditions(self, schema: dict[str, Any], keyword: str, data: Any) -> Iterator[Any]:
        """The schemas of a condition, those that do not hold among them."""
        value = schema[keyword]
        if keyword == "not":
            yield value
        elif keyword == "if":
            yield value
            yield schema.get("then" if self.is_valid(value, data) else "else", True)
        elif isinstance(value, dict) and isinstance(data, dict):
            for name, inner in value.items():
                if name in data and not isinstance(inner, list):
                    yield {"properties": {name: True}}
                    yield inner

    def fitting(self, alternatives: list[Any], data: Any) -> list[Any]:
        """The first alternative that is valid; with ``rivals`` all others after it."""
        self.has_chosen = True
        index = next((index for index, one in enumerate(alternatives) if self.is_valid(one, data)), None)
        if index is None:
            return alternatives if self.rivals else []
        return [alternatives[index], *(alternatives[:index] + alternatives[index + 1 :] if self.rivals else [])]

    def is_valid(self, schema: Any, data: Any) -> bool:
        try:
            return bool(self.validator.evolve(schema=schema).is_valid(data))
        except (re.error, referencing.exceptions.Unresolvable):
            return False

    def target(self, reference: str) -> Any:
        try:
            return self.validator._resolver.lookup(reference).contents
        except referencing.exceptions.Unresolvable:  # relative to an embedded resource
            return {}

    def items(self, applied: list[dict[str, Any]], index: int) -> Iterator[Any]:
        for schema in applied:
            prefix, rest = schema.get("prefixItems", []), schema.get("items", True)
            if isinstance(rest, list):
                prefix, rest = rest, schema.get("additionalItems", True)
            yield prefix[index] if index < len(prefix) else rest

    def members(self, applied: list[dict[str, Any]], name: str) -> Iterator[Any]:
        for schema in applied:
            if name in schema.get("properties", {}):
                yield schema["properties"][name]
            patterns = schema.get("patternProperties", {})
            matched = [patterns[pattern] for pattern in patterns if _occurs(pattern, name)]
            yield from matched
            if not matched:
                yield schema.get("additionalProperties", True)


def _dependents(schema: dict[str, Any]) -> Iterator[str]:
    """The names in ``dependentRequired``, and in those ``dependencies`` that are lists of names."""
    for keyword in ("dependentRequired", "dependencies"):
        for name, others in schema.get(keyword, {}).items():
            if isinstance(others, list):
                yield from others
                yield name


def _occurs(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # an ECMA-262 pattern that Python does not read; it matters for the order only
        return False
