"""Counts in schemas, and the union of tuples by identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from structgen.grammar.json_schema.places import Place, malformed, refused

if TYPE_CHECKING:
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["least_count", "most_count", "united"]

T = TypeVar("T")

_MOST: Final = 2**31 - 1
"""No text that fits into memory has more characters or items."""


def least_count(place: Place, keyword: str, value: Json) -> int:
    """A lower bound on a count: an integer, or a number with a zero fraction, that is not negative.

    Raises:
        GrammarError: ``value`` is none.
        UnsupportedFeature: it is beyond what any text can hold.
    """
    count = _natural(place, keyword, value)
    if count > _MOST:
        refused(place, keyword, f"no text can hold {value} of them", remedy=f"give at most {_MOST}")
    return count


def most_count(place: Place, keyword: str, value: Json) -> int | None:
    """An upper bound on a count, or ``None`` if no text can reach it.

    Raises:
        GrammarError: ``value`` is no count.
    """
    count = _natural(place, keyword, value)
    return count if count <= _MOST else None


def _natural(place: Place, keyword: str, value: Json) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        malformed(place, keyword, "a non-negative integer")
    return value


def united(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...]:
    """The items of both, each object once."""
    if not a or not b or a is b:
        return a or b
    if len(a) == 1 == len(b):
        return a if a[0] is b[0] else a + b
    if len(b) == 1:
        for item in a:
            if item is b[0]:
                return a
        return a + b
    known = set(map(id, a))
    return a + tuple([item for item in b if id(item) not in known])
