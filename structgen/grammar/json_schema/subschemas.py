"""Where the schemas within a schema stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["HOLDERS", "inner_schemas"]

HOLDERS: Final = frozenset(("$defs", "definitions"))
"""Keywords that only hold schemas for references."""

_ONE: Final = frozenset(
    (
        "items",
        "additionalItems",
        "additionalProperties",
        "contains",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
        "contentSchema",
    )
)
_SEVERAL: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED: Final = HOLDERS | {"properties", "patternProperties", "dependentSchemas", "dependencies"}


def inner_schemas(keyword: str, value: Json) -> Iterator[tuple[Json, tuple[str | int, ...]]]:
    """The schemas directly under a keyword, each with the steps that lead to it from the schema that has the keyword.

    Values in their places that are no schemas (names under ``dependencies``, for instance) are given too.
    """
    if isinstance(value, (dict, bool)) and keyword in _ONE:
        yield value, (keyword,)
    elif isinstance(value, (list, tuple)) and keyword in _SEVERAL:
        for index, inner in enumerate(value):
            yield inner, (keyword, index)
    elif isinstance(value, dict) and keyword in _NAMED:
        for name, inner in value.items():
            yield inner, (keyword, name)
