"""When JSON values are equal, and of which type they are."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from structgen.grammar.json_schema.json_types import ARRAY, BOOLEAN, FRACTION, INTEGER, NULL, OBJECT, STRING

if TYPE_CHECKING:
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["type_of", "value_key"]


def type_of(value: Json) -> int:
    """The bit of the type of a JSON value; 0 if it is none."""
    match value:
        case str():
            return STRING
        case bool():
            return BOOLEAN
        case None:
            return NULL
        case int():
            return INTEGER
        case float():
            return INTEGER if value.is_integer() else FRACTION
        case Decimal():
            return INTEGER if value == value.to_integral_value() else FRACTION
        case dict():
            return OBJECT
        case list() | tuple():
            return ARRAY
    return 0


def value_key(value: Json) -> object:
    """A hashable key: two values have equal keys iff JSON Schema calls them equal (1 and 1.0 are).

    Complexity: linear in the size of the value; recursion is replaced by a stack.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, (dict, list, tuple)):
        return _scalar_key(value)
    made: dict[int, object] = {}
    stack: list[tuple[Json, bool]] = [(value, False)]
    while stack:
        item, is_ready = stack.pop()
        members = _members(item)
        if not is_ready:
            stack.append((item, True))
            stack.extend((member, False) for member in members if isinstance(member, (dict, list, tuple)))
            continue
        keys = [
            made[id(member)] if isinstance(member, (dict, list, tuple)) else _scalar_key(member) for member in members
        ]
        is_object = isinstance(item, dict)
        made[id(item)] = ("object", frozenset(zip(item, keys, strict=True))) if is_object else ("array", tuple(keys))
    return made[id(value)]


def _members(value: Json) -> list[Json]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def _scalar_key(value: Json) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return (value,)
    sign, digits, exponent = Decimal(repr(value) if isinstance(value, float) else value).as_tuple()
    text = "".join(map(str, digits))
    significant = text.rstrip("0")
    if not significant or not isinstance(exponent, int):
        return ("number", text and not significant)
    return ("number", sign, significant.lstrip("0"), exponent + len(text) - len(significant))
