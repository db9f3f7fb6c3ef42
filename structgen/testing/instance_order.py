"""The order of members in instances: as a schema declares them, or any."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import referencing.exceptions

__all__ = ["declared_order", "shuffled"]


def declared_order(data: Any, schema: Any) -> Any:
    """Return ``data`` with the members of its objects in the order in which the schema declares them.

    Order has no meaning in JSON but is part of the language, so instances are brought into it first.  Which
    alternative of an ``anyOf`` an object takes is decided by ``jsonschema``.
    """
    return _Ordering(schema).ordered(data, [schema])


def shuffled(data: Any, rng: random.Random) -> Any:
    """Return ``data`` with the members of all objects in random order."""
    if isinstance(data, list):
        return [shuffled(item, rng) for item in data]
    if not isinstance(data, dict):
        return data
    return {name: shuffled(data[name], rng) for name in rng.sample(list(data), len(data))}


class _Ordering:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.validator = jsonschema.validators.validator_for(root, default=jsonschema.Draft202012Validator)(root)

    def ordered(self, data: Any, schemas: list[Any]) -> Any:
        applied = [inner for schema in schemas for inner in self.applied(schema, data, 0)]
        if isinstance(data, list):
            return [self.ordered(item, list(self.items(applied, index))) for index, item in enumerate(data)]
        if not isinstance(data, dict):
            return data
        names = [name for schema in applied for name in schema.get("properties", {})]
        names += [name for schema in applied for name in schema.get("required", [])]
        rank = {name: index for index, name in reversed(list(enumerate(names)))}
        declared = sorted((name for name in data if name in rank), key=rank.__getitem__)
        others = [name for name in data if name not in rank]
        return {name: self.ordered(data[name], list(self.members(applied, name))) for name in declared + others}

    def applied(self, schema: Any, data: Any, depth: int) -> Iterator[dict[str, Any]]:
        """The schema objects that apply to ``data`` in place, in the order of the keywords."""
        if not isinstance(schema, dict) or depth > 50:
            return
        yielded = False
        for keyword, value in schema.items():
            if keyword == "properties":
                yielded = True
                yield schema
            elif keyword == "$ref" and isinstance(value, str):
                yield from self.applied(self.target(value), data, depth + 1)
            elif keyword == "allOf":
                for inner in value:
                    yield from self.applied(inner, data, depth + 1)
            elif keyword in ("anyOf", "oneOf"):
                yield from self.applied(self.fitting(value, data), data, depth + 1)
        if not yielded:
            yield schema

    def fitting(self, alternatives: list[Any], data: Any) -> Any:
        try:
            return next(s for s in alternatives if self.validator.evolve(schema=s).is_valid(data))
        except (StopIteration, re.error, referencing.exceptions.Unresolvable):
            return {}

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


def _occurs(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # an ECMA-262 pattern that Python does not read; it matters for the order only
        return False
