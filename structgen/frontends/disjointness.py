"""Proofs that two regular languages have no string in common.

Both become nondeterministic automata over code points, made lazily by partial derivatives (Antimirov 1996), and their
product is searched for a common string. Large counters and complements are over-approximated, so a proof is certain and
a missing proof says nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar

__all__ = ["are_disjoint"]

_FUEL: Final = 4_000
"""The limit on visited pairs of states."""
_COUNTED: Final = 6
"""The limit on counted rounds of a repetition."""
_END: Final = 0

_Ranges: TypeAlias = tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def are_disjoint(one: Grammar, other: Grammar) -> bool:
    """Whether ``one`` and ``other``, regular terms over text, are proved to have no string in common.

    Complexity: bounded by a constant number of steps.

    >>> from structgen.frontends.regex import regex
    >>> from structgen.grammar.algebra import undescribed
    >>> digits, letters = undescribed(regex("[0-9]+x")), undescribed(regex("[a-z]+x"))
    >>> are_disjoint(digits, letters), are_disjoint(letters, letters)
    (True, False)
    """
    if isinstance(one, ir.Intersection) and any(are_disjoint(item, other) for item in one.items):
        return True
    if isinstance(other, ir.Intersection) and any(are_disjoint(one, item) for item in other.items):
        return True
    if isinstance(other, ir.Complement):
        one, other = other, one
    if isinstance(one, ir.Complement) and one.item == other:
        return True
    try:
        return _have_nothing_in_common(_CodePointAutomaton(one), _CodePointAutomaton(other))
    except _Unknown:
        return False


class _Unknown(Exception):
    """A term is not supported here, or takes too long."""


class _CodePointAutomaton:
    """A term as an automaton; a state is a term to read next, followed by a state."""

    def __init__(self, term: Grammar) -> None:
        self._cells: list[tuple[Grammar, int] | None] = [None]
        self._ids: dict[tuple[Grammar, int], int] = {}
        self._found: dict[int, tuple[bool, list[tuple[_Ranges, int]]]] = {}
        self.start = self._cell(term, _END)

    def _cell(self, term: Grammar, rest: int) -> int:
        key = (term, rest)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._cells)
            self._cells.append(key)
        return found

    def look(self, state: int) -> tuple[bool, list[tuple[_Ranges, int]]]:
        """Whether ``state`` accepts, and its transitions: code points and the next state."""
        found = self._found.get(state)
        if found is None:
            found = self._found[state] = self._expand(state)
        return found

    def _expand(self, state: int) -> tuple[bool, list[tuple[_Ranges, int]]]:
        accepts = False
        edges: list[tuple[_Ranges, int]] = []
        work, seen = [state], {state}
        while work:
            cell = self._cells[work.pop()]
            if cell is None:
                accepts = True
                continue
            if len(seen) > _FUEL:
                raise _Unknown
            for following in self._read(*cell, edges):
                if following not in seen:
                    seen.add(following)
                    work.append(following)
        return accepts, edges

    def _read(self, term: Grammar, rest: int, edges: list[tuple[_Ranges, int]]) -> list[int]:
        """Add the transitions of one term; return the states reached without reading."""
        match term:
            case ir.Literal(data=data):
                return self._literal(data, rest, edges)
            case ir.CharClass(ranges=ranges):
                edges.append((ranges, rest))
                return []
            case ir.ByteClass(ranges=ranges) if all(high < 0x80 for _, high in ranges):
                edges.append((ranges, rest))
                return []
            case ir.Sequence(items=items):
                for item in reversed(items):
                    rest = self._cell(item, rest)
                return [rest]
            case ir.Choice(items=items):
                return [self._cell(item, rest) for item in items]
            case ir.Repeat():
                return self._repeat(term, rest)
            case ir.Shared(item=item):
                return [self._cell(item, rest)]
            case ir.Intersection(items=items):
                return [self._cell(items[0], rest)]
            case ir.Complement():
                return [self._cell(ir.Repeat(ir.ANY_CHAR), rest)]
        raise _Unknown

    def _literal(self, data: bytes, rest: int, edges: list[tuple[_Ranges, int]]) -> list[int]:
        if not data:
            return [rest]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise _Unknown from None
        point = ord(text[0])
        edges.append((((point, point),), self._cell(ir.Literal(text[1:].encode()), rest) if text[1:] else rest))
        return []

    def _repeat(self, term: ir.Repeat, rest: int) -> list[int]:
        low, high = term.min, term.max
        if low > _COUNTED or (high is not None and high > _COUNTED):
            low, high = min(low, _COUNTED), None
        if high == 0:
            return [rest]
        again = ir.Repeat(term.item, max(low - 1, 0), None if high is None else high - 1)
        once = self._cell(term.item, self._cell(again, rest))
        return [once] if low else [rest, once]


def _have_nothing_in_common(one: _CodePointAutomaton, other: _CodePointAutomaton) -> bool:
    start = (one.start, other.start)
    work, seen = [start], {start}
    while work:
        left, right = work.pop()
        left_ends, left_edges = one.look(left)
        right_ends, right_edges = other.look(right)
        if left_ends and right_ends:
            return False
        for left_ranges, after_left in left_edges:
            for right_ranges, after_right in right_edges:
                pair = (after_left, after_right)
                if pair not in seen and _meet(left_ranges, right_ranges):
                    if len(seen) >= _FUEL:
                        return False
                    seen.add(pair)
                    work.append(pair)
    return True


def _meet(one: _Ranges, other: _Ranges) -> bool:
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] < other[j][0]:
            i += 1
        elif other[j][1] < one[i][0]:
            j += 1
        else:
            return True
    return False
