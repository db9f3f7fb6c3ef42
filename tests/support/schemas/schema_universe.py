"""A small universe of schemas in which all the keywords that combine schemas meet."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["Universe"]

NAMES = ("a", "b", "c")


class Universe:
    """Draws schemas."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def schema(self, depth: int) -> Any:
        pick = self.random
        if depth == 0 or pick.random() < 0.15:
            return self.leaf()
        found: dict[str, Any] = {}
        for _ in range(pick.choice((1, 1, 1, 2, 2, 3))):
            found |= self.keyword(depth - 1)
        return found

    def leaf(self) -> Any:
        leaves: tuple[Any, ...] = (
            *(True, False, {"type": "string"}, {"type": "integer"}, {"type": ["object", "null"]}, {"type": "array"}),
            *({"const": 1}, {"const": "a"}, {"enum": [1, "a", None]}, {"enum": [True, 2, "ab"]}, {"const": {"a": 1}}),
            *({"minLength": 1}, {"maxLength": 1}, {"pattern": "a"}, {"minimum": 1}, {"exclusiveMaximum": 2}),
            *({"multipleOf": 2}, {"required": ["a"]}, {"required": ["b", "c"]}, {"maxProperties": 1}, {"const": [1]}),
            *({"minItems": 1}, {"maxItems": 1}, {"type": "number", "minimum": 1}, {"type": "boolean"}),
        )
        return self.random.choice(leaves)

    def keyword(self, depth: int) -> dict[str, Any]:
        pick = self.random
        inner = lambda: self.schema(depth)  # noqa: E731
        some = lambda: [inner() for _ in range(pick.choice((1, 2, 2, 3)))]  # noqa: E731
        named = lambda: {name: inner() for name in pick.sample(NAMES, pick.choice((1, 2)))}  # noqa: E731
        makers = (
            lambda: {"not": inner()},
            lambda: {"not": inner()},
            lambda: {"allOf": some()},
            lambda: {"anyOf": some()},
            lambda: {"oneOf": some()},
            lambda: {"oneOf": some()},
            lambda: {"if": inner(), "then": inner()},
            lambda: {"if": inner(), "else": inner()},
            lambda: {"if": inner(), "then": inner(), "else": inner()},
            lambda: {"properties": named()},
            lambda: {"properties": named(), "required": [pick.choice(NAMES)]},
            lambda: {"properties": named(), "additionalProperties": inner()},
            lambda: {"patternProperties": {"^[ab]": inner(), "[bc]": inner()}},
            lambda: {"propertyNames": {"pattern": pick.choice(("a", "^[ab]$"))}},
            lambda: {"dependentRequired": {pick.choice(NAMES): [pick.choice(NAMES)]}},
            lambda: {"dependentSchemas": {pick.choice(NAMES): inner()}},
            lambda: {"items": inner()},
            lambda: {"prefixItems": some()},
            lambda: {"contains": inner()},
            lambda: {"contains": inner(), "minContains": pick.choice((0, 1, 2)), "maxContains": pick.choice((1, 2))},
            lambda: {"properties": named(), "unevaluatedProperties": inner()},
            lambda: {"anyOf": some(), "unevaluatedProperties": False},
            lambda: {"prefixItems": some(), "unevaluatedItems": inner()},
            lambda: {"oneOf": some(), "unevaluatedItems": False},
            lambda: {"type": pick.choice(("object", "array", "string", "number"))},
        )
        return pick.choice(makers)()
