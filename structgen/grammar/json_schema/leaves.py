"""The plans of schemas that have no parts, kept by content.

Most schemas in a document are such, ``{"type": "string"}`` above all, and few of them are new to a process.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema import numbers, strings
from structgen.grammar.json_schema.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Container

    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.nodes import Grammar

__all__ = ["SIMPLE", "Key", "Leaves"]

SIMPLE: Final = frozenset(("type", "nullable", *strings.READERS, *numbers.READERS))
"""The keywords that the values of a schema without parts depend on."""

_KEPT: Final = SIMPLE - {"multipleOf"}
"""A multiple may be a large term, which is kept elsewhere, within a bound in bytes."""
_NUMBERS: Final = frozenset((int, float, bool, Decimal))
_MOST_PLANS: Final = 4_096
_LONGEST: Final = 256
"""Characters of a value, so that what is kept is bounded in bytes too."""

Key = tuple[tuple[str, object, type], ...]


class Leaves:
    """The plans of one dialect, policy and set of limits."""

    __slots__ = ("_active", "_plans")

    def __init__(self, active: Container[str]) -> None:
        """Begin with none.

        Args:
            active: every keyword that means something.
        """
        self._active = active
        self._plans: dict[Key, Plan] = {}

    def key(self, schema: Json) -> Key | None:
        """What the values of ``schema`` depend on; ``None`` if it is no leaf, or not worth keeping."""
        if schema.__class__ is not dict:
            return None
        active = self._active
        key = []
        for keyword, value in schema.items():
            if keyword in active:
                if keyword not in _KEPT:
                    return None
                kind = value.__class__  # for 1 == 1.0 == True
                if kind is str:
                    if len(value) > _LONGEST:
                        return None
                elif kind is list:
                    if any(name.__class__ is not str for name in value):
                        return None
                    value = tuple(value)  # noqa: PLW2901
                elif kind not in _NUMBERS:
                    return None
                key.append((keyword, value, kind))
        return tuple(key)

    def get(self, key: Key) -> Plan | None:
        """The plan that was kept for a key."""
        return self._plans.get(key)

    def keep(self, key: Key, term: Grammar) -> None:
        """Keep the term of a key."""
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[key] = Plan((), 0, term)
