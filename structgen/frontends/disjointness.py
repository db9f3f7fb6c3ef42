"""Proofs that two regular languages have no string in common.

Both become nondeterministic automata over code points, made lazily by partial derivatives (Antimirov 1996), and their
product is searched for a common string. Large counters and complements are over-approximated, so a proof is certain and
a missing proof says nothing.

Of several languages only those pairs are compared whose texts can begin and end alike: patterns such as ``^a_`` and
``^b_`` are distinguished by sorting the literals that they begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.memory_cache import TERMS, ContentCache

__all__ = ["are_disjoint", "fixed_end", "fixed_start", "have_disjoint_pair", "overlaps"]

_FUEL: Final = 4_000
"""The limit on visited pairs of states."""
_COUNTED: Final = 6
"""The limit on counted rounds of a repetition."""
_READ_COST: Final = 12
"""The steps to read a term: about its time in microseconds."""
_PAIR_COST: Final = 4
"""The steps to visit a pair of states, without those for each pair of transitions."""
_RANGES_A_STEP: Final = 8
"""Ranges that are compared in one step."""
_END: Final = 0
_FIXED: Final = 64
"""The limit on the bytes of a literal prefix or suffix."""
_FIXED_DEPTH: Final = 16
"""How deep it is looked for."""

_Ranges: TypeAlias = tuple[tuple[int, int], ...]


def are_disjoint(one: Grammar, other: Grammar) -> bool:
    """Whether ``one`` and ``other``, regular terms over text, are proved to have no string in common.

    Complexity: bounded by a constant number of steps.

    >>> from structgen.frontends.regex import regex
    >>> from structgen.grammar.algebra import undescribed
    >>> digits, letters = undescribed(regex("[0-9]+x")), undescribed(regex("[a-z]+x"))
    >>> are_disjoint(digits, letters), are_disjoint(letters, letters)
    (True, False)
    """
    key = one.digest, other.digest
    proved = _proved.get(key)
    if proved is None:
        proved = _Proofs(lambda _: None).disjoint(one, other)
        _proved.put(key, proved, _PROOF_BYTES)
    return proved


_PROOF_BYTES: Final = 512
_proved: Final[ContentCache[bool]] = ContentCache(TERMS)


def overlaps(languages: Sequence[Grammar], count: Callable[[int], None]) -> list[set[int]]:
    """For each of some regular terms over text, the others that may have a string in common with it.

    Args:
        languages: the terms.
        count: receives the steps that were taken, and may raise an error.

    Complexity: O(n log n) for n languages, and a bounded number of steps for each pair that can begin alike.

    >>> from structgen.frontends.regex import regex
    >>> from structgen.grammar.algebra import undescribed
    >>> overlaps([undescribed(regex(text)) for text in ("a_.*", "b_.*", "a_[0-9]", "a_")], lambda steps: None)
    [{2, 3}, set(), {0}, {0}]
    """
    proofs = _Proofs(count)
    result: list[set[int]] = [set() for _ in languages]
    count(len(languages))
    for i, j in _compatible(list(map(fixed_start, languages))):
        if not proofs.disjoint(languages[i], languages[j]):
            result[i].add(j)
            result[j].add(i)
    return result


def have_disjoint_pair(languages: Sequence[Grammar], count: Callable[[int], None]) -> bool:
    """Whether two of the languages are proved to have no string in common; ``count`` as in ``overlaps``."""
    proofs = _Proofs(count)
    return any(proofs.disjoint(*pair) for pair in combinations(languages, 2))


def _compatible(starts: list[bytes]) -> Iterator[tuple[int, int]]:
    """The pairs of indices whose one text begins with the other."""
    shorter: list[int] = []
    for index in sorted(range(len(starts)), key=starts.__getitem__):  # a text comes after those that it begins with
        while shorter and not starts[index].startswith(starts[shorter[-1]]):
            shorter.pop()
        for other in shorter:
            yield other, index
        shorter.append(index)


def fixed_start(term: Grammar) -> bytes:
    """Bytes with which all strings of ``term`` begin; at most 64, and perhaps not all of them.

    >>> from structgen.grammar.nodes import ANY_CHAR, Repeat, literal
    >>> fixed_start(literal("id_") + Repeat(ANY_CHAR)), fixed_end(literal("id_") + Repeat(ANY_CHAR))
    (b'id_', b'')
    """
    return _fixed(term, _FIXED_DEPTH, is_start=True)[0]


def fixed_end(term: Grammar) -> bytes:
    """Bytes with which all strings of ``term`` end; at most 64, and perhaps not all of them."""
    return _fixed(term, _FIXED_DEPTH, is_start=False)[0]


def _fixed(term: Grammar, depth: int, *, is_start: bool) -> tuple[bytes, bool]:
    """The common prefix or suffix of all strings, and whether it is the only string."""
    if depth == 0:
        return b"", False
    match term:
        case ir.Literal(data=data):
            return data, True
        case ir.Shared(item=item):
            return _fixed(item, depth - 1, is_start=is_start)
        case ir.Sequence(items=items):
            parts = iter(items if is_start else reversed(items))
        case ir.Repeat(item=item, min=low, max=high) if low:
            found, is_only = _fixed(item, depth - 1, is_start=is_start)
            rounds = min(low, _FIXED) if is_only else 1
            return found * rounds, is_only and rounds == high
        case _:
            return b"", False
    fixed = b""
    for part in parts:
        found, is_only = _fixed(part, depth - 1, is_start=is_start)
        fixed = fixed + found if is_start else found + fixed
        if len(fixed) > _FIXED:
            return fixed[:_FIXED] if is_start else fixed[-_FIXED:], False
        if not is_only:
            return fixed, False
    return fixed, True


class _Proofs:
    """Proofs about pairs of terms; each term becomes an automaton once.

    ``count`` receives the steps that were taken.
    """

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._automata: dict[int, _CodePointAutomaton] = {}  # which keep the terms alive
        self._fixed: dict[int, tuple[bytes, bytes]] = {}

    def disjoint(self, one: Grammar, other: Grammar) -> bool:
        """Whether two terms are proved to have no string in common."""
        self._count(1)
        if self._differ(one, other):
            return True
        if isinstance(one, ir.Intersection) and any(self.disjoint(item, other) for item in one.items):
            return True
        if isinstance(other, ir.Intersection) and any(self.disjoint(one, item) for item in other.items):
            return True
        if isinstance(other, ir.Complement):
            one, other = other, one
        if isinstance(one, ir.Complement) and one.item == other:
            return True
        try:
            return _have_nothing_in_common(self._automaton(one), self._automaton(other), self._count)
        except _Unknown:
            return False

    def _differ(self, one: Grammar, other: Grammar) -> bool:
        """Whether all strings of the terms begin or end differently."""
        start, end = self._ends(one)
        other_start, other_end = self._ends(other)
        if not (start.startswith(other_start) or other_start.startswith(start)):
            return True
        return not (end.endswith(other_end) or other_end.endswith(end))

    def _ends(self, term: Grammar) -> tuple[bytes, bytes]:
        found = self._fixed.get(id(term))
        if found is None:
            found = self._fixed[id(term)] = fixed_start(term), fixed_end(term)
            self._automaton(term)
        return found

    def _automaton(self, term: Grammar) -> _CodePointAutomaton:
        found = self._automata.get(id(term))
        if found is None:
            found = self._automata[id(term)] = _CodePointAutomaton(term, self._count)
        return found


class _Unknown(Exception):
    """A term is not supported here, or takes too long."""


class _CodePointAutomaton:
    """A term as an automaton; a state is a term to read next, followed by a state."""

    def __init__(self, term: Grammar, count: Callable[[int], None]) -> None:
        self._count = count
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
            self._count(_READ_COST)
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


def _have_nothing_in_common(one: _CodePointAutomaton, other: _CodePointAutomaton, count: Callable[[int], None]) -> bool:
    start = (one.start, other.start)
    work, seen = [start], {start}
    while work:
        left, right = work.pop()
        left_ends, left_edges = one.look(left)
        right_ends, right_edges = other.look(right)
        count(_PAIR_COST)
        if left_ends and right_ends:
            return False
        for left_ranges, after_left in left_edges:
            for right_ranges, after_right in right_edges:
                count(1 + (len(left_ranges) + len(right_ranges)) // _RANGES_A_STEP)
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
