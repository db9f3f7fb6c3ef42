r"""Terminals that say which character may not come next.

``/if\b/``, ``/0|[1-9][0-9]*(?![\w.])/``, and names that are no keyword, ``/(?!(?:if|else)\b)[a-z]\w*\b/``.

A boundary at the end of a regexp says of the text behind its terminal that it does not begin with a word character,
where all texts of the regexp end with one.  A look-ahead at its end says the same of any character.
A look-ahead at its start, for words that end at a boundary too, sees nothing beyond that boundary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from structgen.grammar.algebra import joined
from structgen.grammar.disjointness import are_disjoint
from structgen.grammar.indentation.marks import NotBefore
from structgen.grammar.indentation.words import nonempty, word_characters
from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    CharClass,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    choice,
)
from structgen.grammar.regex.ranges import complement

__all__ = ["Guarded", "guarded", "guarded_text"]

Span: TypeAlias = tuple[int, int]

_BOUNDARY: Final = r"\b"
# A class that is not closed, an error elsewhere, is one piece too: to look for its end again and again is quadratic.
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\Z)|.", re.DOTALL)
_ANY: Final = Repeat(ANY_CHAR)


class Guarded(NamedTuple):
    r"""The spans of a regexp ``(?!A\b)P(?!C)``, or with ``\b`` in place of ``(?!C)``.

    Attributes:
        excluded: of ``A``; ``None``: there is no look-ahead at the start.
        body: of ``P``.
        guard: of ``C``; ``None``: there is a boundary.
    """

    excluded: Span | None
    body: Span
    guard: Span | None


def guarded(text: str) -> Guarded | None:
    """Take a regexp apart; ``None``: it has another form."""
    if text.endswith(_BOUNDARY):
        guard, end = None, len(text) - len(_BOUNDARY)
    else:
        end = _last_group(text)
        if not text.startswith("(?!", end):
            return None
        guard = (end + 3, len(text) - 1)
    start, excluded = 0, None
    if text.startswith("(?!") and end:
        start = _first_group(text)
        if guard is not None or not text[:start].endswith(_BOUNDARY + ")") or not _is_one(text, 3, start - 3):
            return None
        excluded = (3, start - 3)
    return Guarded(excluded, (start, end), guard) if start < end and _is_one(text, start, end) else None


def guarded_text(term: Grammar, excluded: Grammar | None, guard: Grammar | None) -> tuple[Grammar, NotBefore] | None:
    r"""Return the texts of a regexp, and what may not come next; ``None`` where that is not certain.

    Args:
        term: the texts of ``P``.
        excluded: the texts of ``A``.
        guard: the text of ``C``, one character; ``None``: a boundary.
    """
    if nonempty(term) is not term:
        return None  # what would come next would be that of the terminal before, too
    if guard is not None:
        if isinstance(guard, Literal) and len(guard.data.decode()) == 1:
            guard = CharClass([(ord(guard.data.decode()),) * 2])
        return (term, NotBefore(guard)) if isinstance(guard, CharClass) else None
    others = CharClass(complement(word_characters().ranges))
    if not are_disjoint(term, joined([_ANY, others])):
        return None
    if excluded is not None:
        if not are_disjoint(excluded, joined([_ANY, others, _ANY])):
            return None
        words = excluded
        if not are_disjoint(term, joined([_ANY, others, _ANY])):
            words = joined([excluded, choice(EPSILON, joined([others, _ANY]))])
        term = Intersection((term, Complement(words)))
    return term, NotBefore(word_characters())


def _first_group(text: str) -> int:
    """Where the group that a regexp begins with ends."""
    depth = 0
    for position, piece in _pieces(text, 0):
        depth += (piece == "(") - (piece == ")")
        if depth == 0:
            return position + 1
    return len(text)


def _last_group(text: str) -> int:
    """Where the group that a regexp ends with begins; the end of the regexp if there is none."""
    if not text.endswith(")"):
        return len(text)
    depth, start, end = 0, len(text), 0
    for position, piece in _pieces(text, 0):
        if piece == "(" and depth == 0:
            start = position
        depth += (piece == "(") - (piece == ")")
        if piece == ")" and depth == 0:
            end = position + 1
    return start if end == len(text) else len(text)


def _is_one(text: str, start: int, end: int) -> bool:
    """Whether a boundary at ``end`` belongs to all of the span: no bar stands outside of groups, nor half an escape."""
    depth, last = 0, start
    for position, piece in _pieces(text, start):
        if position >= end:
            break
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            return False
        last = position + len(piece)
    return last == end


def _pieces(text: str, start: int) -> Iterator[tuple[int, str]]:
    for match in _PIECE.finditer(text, start):
        yield match.start(), match[0]
