"""Putting terms together: sequences, alternatives and intersections that stay flat while they are short.

Splicing a long sequence into a longer one again and again would make a pattern of n assertions cost n squared, so
only short ones are spliced; long ones stay one item.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

from structgen.grammar.nodes import ANY_CHAR, EPSILON, Choice, Grammar, Intersection, Literal, Repeat, Sequence

__all__ = ["ANY_TEXT", "both", "either", "then"]

ANY_TEXT: Final[Grammar] = Repeat(ANY_CHAR, 0, None)
"""Every text."""

_SPLICED_ITEMS: Final = 8
_JOINED_BYTES: Final = 64
_JOINED_ITEMS: Final = 16


def then(first: Grammar, second: Grammar) -> Grammar:
    """``first`` and then ``second``; short sequences are spliced and short literals joined."""
    if second is EPSILON:
        return first
    if first is EPSILON:
        return second
    left, right = _spliced(first), _spliced(second)
    end, start = left[-1], right[0]
    if isinstance(end, Literal) and isinstance(start, Literal) and len(start.data) <= _JOINED_BYTES:
        joined = Literal(end.data + start.data)
        if len(left) + len(right) == 2:
            return joined
        return Sequence((*left[:-1], joined, *right[1:]))
    return Sequence(left + right)


def either(terms: Items[Grammar]) -> Grammar:
    """Any one of ``terms``, each kept once."""
    distinct = list({id(term): term for term in terms}.values())
    return distinct[0] if len(distinct) == 1 else Choice(distinct)


def both(left: Grammar, right: Grammar) -> Grammar:
    """The texts of both terms, with short nested intersections made one."""
    if left is ANY_TEXT:
        return right
    if right is ANY_TEXT:
        return left
    items: list[Grammar] = []
    for term in (left, right):
        short = isinstance(term, Intersection) and len(term.items) <= _JOINED_ITEMS
        items.extend(term.children if short else (term,))
    return Intersection(items)


def _spliced(term: Grammar) -> tuple[Grammar, ...]:
    if isinstance(term, Sequence) and 0 < len(term.items) <= _SPLICED_ITEMS:
        return term.items
    return (term,)
