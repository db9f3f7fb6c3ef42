r"""Lazy repetition in terminals: ``/".*?"/`` stops at the first place where what follows it can match.

As a set of texts, ``x*?`` is ``x*``; as part of a terminal it is not, for Lark takes the match that a backtracking
search finds first.  Here that match is made part of the language::

    x{m,n}? s r   is   ((x{m,n} s) & ~(x{m,} s any+)) r

for a single character ``x``, a text ``s`` of fixed length and an ``r`` that may be empty: the first of the two
parts ends where ``s`` first stands.  If all that follows may be empty, the repetition stops at once, after m.
Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from structgen.grammar.algebra import either, joined
from structgen.grammar.analysis import Nullability
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    Sequence,
    postorder,
)

__all__ = ["Branches", "Lazy", "Pattern", "Refusal", "branches", "closed", "first_lazy", "is_plain", "plain"]


@dataclass(frozen=True, slots=True, eq=False)
class Lazy:
    """``item`` from ``min`` to ``max`` times, as few as possible."""

    item: Grammar
    min: int
    max: int | None
    refuse: Refusal


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """Any one of the alternatives; a lazy repetition is in one of them."""

    alternatives: tuple[Pattern, ...]
    depth: int


Refusal: TypeAlias = Callable[[str], Exception]
"""Makes the error that refuses a lazy repetition, from the reason."""
Pattern: TypeAlias = tuple[Grammar | Lazy | Branches, ...]
"""What stands one after the other."""

_DEEPEST: Final = 32


def is_plain(pattern: Pattern) -> bool:
    """Whether no lazy repetition is left open in the pattern."""
    return all(isinstance(part, Grammar) for part in pattern)


def branches(alternatives: list[Pattern]) -> Pattern:
    """Return any one of the alternatives."""
    if all(map(is_plain, alternatives)):
        return (either(map(plain, alternatives)),)
    inner = [part.depth for alternative in alternatives for part in alternative if isinstance(part, Branches)]
    return (Branches(tuple(alternatives), 1 + max(inner, default=0)),)


def plain(pattern: Pattern) -> Grammar:
    """Return the texts of a pattern without lazy repetition."""
    return joined(part for part in pattern if isinstance(part, Grammar))


def closed(pattern: Pattern) -> Grammar:
    """Return the texts of a whole terminal.

    Raises:
        UnsupportedFeature: where a lazy repetition stops cannot be said by a finite automaton of modest size.
    """
    return _closed(pattern, Nullability({}))


def _closed(pattern: Pattern, nullable: Nullability) -> Grammar:
    if is_plain(pattern):
        return plain(pattern)
    after: list[Grammar] = []  # what follows the part that is looked at, last first
    may_end = True  # whether all of it may be empty
    for part in reversed(pattern):
        if isinstance(part, Grammar):
            items = part.items if isinstance(part, Sequence) else (part,)
            after += reversed(items)
        elif isinstance(part, Branches):
            refuse = first_lazy((part,)).refuse
            if part.depth > _DEEPEST:
                raise refuse("it is nested too deeply in groups")
            if not may_end:
                raise refuse("text follows the group that it stands in")
            items = (either(_closed(branch, nullable) for branch in part.alternatives),)
            after += items
        elif may_end:
            items = (Repeat(part.item, part.min, part.min),)
            after += items
        else:
            items = (_stopped(part, after, nullable),)
            after += items
        may_end = may_end and all(map(nullable, items))
    return joined(reversed(after))


def _stopped(lazy: Lazy, after: list[Grammar], nullable: Nullability) -> Grammar:
    """Return the repetition with what stops it, which is taken out of ``after``."""
    if _length(lazy.item) != 1:
        raise lazy.refuse("what it repeats is not a single character")
    ends = next(index for index, part in enumerate(after) if not nullable(part))
    stop = joined(reversed(after[ends:]))
    if not _length(stop):
        raise lazy.refuse("what follows it has no fixed length")
    del after[ends:]
    found = joined([Repeat(lazy.item, lazy.min, lazy.max), stop])
    later = joined([Repeat(lazy.item, lazy.min, None), stop, Repeat(ANY_CHAR, 1, None)])
    return Intersection((found, Complement(later)))


def first_lazy(pattern: Pattern) -> Lazy:
    """Return the first lazy repetition of a pattern that has one."""
    stack = list(reversed(pattern))
    while True:
        item = stack.pop()
        if isinstance(item, Lazy):
            return item
        if isinstance(item, Branches):
            stack.extend(inner for branch in reversed(item.alternatives) for inner in reversed(branch))


def _length(term: Grammar) -> int | None:
    """The number of characters that every member of ``term`` has, if it is clear from the term."""
    lengths: dict[int, int | None] = {}
    for node in postorder(term):
        below = [lengths[id(child)] for child in node.children]
        known = [length for length in below if length is not None]
        length: int | None = None
        match node:
            case Literal():
                length = len(node.data.decode())
            case CharClass():
                length = 1
            case Sequence() if len(known) == len(below):
                length = sum(known)
            case Choice() if len(known) == len(below) and len(set(known)) == 1:
                length = known[0]
            case Repeat() if node.min == node.max and known:
                length = node.min * known[0]
            case _:
                length = None
        lengths[id(node)] = length
    return lengths[id(term)]
