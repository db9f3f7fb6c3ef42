"""Regular terms, less the texts that start with certain characters."""

from __future__ import annotations

from functools import cache
from typing import Final

from structgen.frontends.regex.code_point import complement, contains, difference, python_word
from structgen.grammar.algebra import either, joined
from structgen.grammar.analysis import Nullability
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    CharClass,
    Choice,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    Sequence,
)

__all__ = ["nonempty", "without_start", "word_characters"]

_MAX_DEPTH: Final = 40
_SOME: Final = Repeat(ANY_CHAR, 1, None)
_nullable: Final = Nullability({})


@cache
def word_characters() -> CharClass:
    r"""The characters of ``\w``."""
    return CharClass(python_word())


def nonempty(term: Grammar) -> Grammar:
    """Return a regular term without the empty text; the same object if it has none."""
    if not Nullability({})(term):
        return term
    if isinstance(term, Repeat) and not Nullability({})(term.item):
        return EMPTY if term.max == 0 else Repeat(term.item, 1, term.max)
    return Intersection((term, _SOME))


def without_start(term: Grammar, characters: CharClass) -> Grammar:
    """Return the texts of a regular term that begin with a character, and that none of ``characters``.

    The same object if these are all.
    """
    return _without(term, characters, _MAX_DEPTH)


def _without(term: Grammar, characters: CharClass, depth: int) -> Grammar:
    match term:
        case Literal(data=data):
            if not data:
                return EMPTY
            try:
                first = ord(data.decode()[0])
            except UnicodeDecodeError:
                pass
            else:
                return EMPTY if contains(characters.ranges, first) else term
        case CharClass():
            left = CharClass(difference(term.ranges, characters.ranges))
            return term if left == term else left if left.ranges else EMPTY
        case Choice(items=items) if depth:
            parts = [_without(item, characters, depth - 1) for item in items]
            if all(map(_is_same, parts, items)):
                return term
            parts = [part for part in parts if part is not EMPTY]
            return either(parts) if parts else EMPTY
        case Sequence(items=items) if depth and items:
            return _without_in_sequence(term, items, characters, depth - 1)
        case Intersection(items=items) if depth and items:
            start = _without(items[0], characters, depth - 1)
            if start is items[0] or start is EMPTY:
                return term if start is items[0] else EMPTY
            return Intersection((start, *items[1:]))
        case Repeat(item=item, min=low, max=high) if depth and high != 0:
            start = _without(item, characters, depth - 1)
            if start is EMPTY:
                return EMPTY
            if start is item:
                return term if low else Repeat(item, 1, high)
            return joined([start, Repeat(item, max(low - 1, 0), None if high is None else high - 1)])
    allowed = CharClass(complement(characters.ranges))
    return Intersection((term, joined([allowed, Repeat(ANY_CHAR)])))


def _without_in_sequence(term: Grammar, items: tuple[Grammar, ...], characters: CharClass, depth: int) -> Grammar:
    head, rest = items[0], joined(items[1:])
    start = _without(head, characters, depth)
    if not Nullability({})(head):
        return term if start is head else EMPTY if start is EMPTY else joined([start, rest])
    further = _without(rest, characters, depth)
    parts = [part for part in (EMPTY if start is EMPTY else joined([start, rest]), further) if part is not EMPTY]
    return either(parts) if parts else EMPTY


def _is_same(one: object, other: object) -> bool:
    return one is other


def any_number(item: Grammar) -> Grammar:
    if isinstance(item, Repeat) and item.min <= 1 and item.max is None:
        item = item.item  # (x+)* is x*
    return Repeat(item, 0, None)


def begins_freely(gap: Grammar, guard: CharClass) -> bool:
    some = EPSILON if gap is EPSILON else nonempty(gap)
    return some is EPSILON or without_start(some, guard) is some


def optional_text(text: Grammar) -> Grammar:
    return EPSILON if text is EMPTY else either([text, EPSILON])
