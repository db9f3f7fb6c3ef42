"""Whether the next symbol alone decides how a network reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

__all__ = ["is_deterministic"]

_Reads: TypeAlias = "Sequence[Sequence[tuple[int, tuple[int, ...], int]]]"
_Calls: TypeAlias = "Sequence[Sequence[tuple[int, int]]]"


def is_deterministic(reads: _Reads, calls: _Calls, final: Sequence[bool]) -> bool:
    """Whether the next symbol decides between the edges of a state, its calls, and the return.

    Then a text has one run at most.  A call reads something.

    Complexity: O((e + c) * s) for e edges, c calls and sets of s symbols, and rounds of them along recursion.

    Source: P. M. Lewis, R. E. Stearns, "Syntax-directed transduction" (1968, JACM 15), for grammars that one symbol of
    look-ahead decides.
    """
    as_set = _Sets()
    read = [[as_set(symbols) for _, symbols, _ in edges] for edges in reads]
    starts = _first(read, calls)
    follows = _following(reads, calls, final, starts)
    return all(
        _are_disjoint(
            [*read[state], *(starts[start] for start, _ in calls[state]), *([follows[state]] if final[state] else [])]
        )
        for state in range(len(final))
    )


class _Sets:
    """Sets of symbols as bits of a number."""

    def __init__(self) -> None:
        self._bit: dict[int, int] = {}
        self._known: dict[tuple[int, ...], int] = {}

    def __call__(self, symbols: tuple[int, ...]) -> int:
        if symbols not in self._known:
            self._known[symbols] = _union(1 << self._bit.setdefault(symbol, len(self._bit)) for symbol in symbols)
        return self._known[symbols]


def _first(read: Sequence[Sequence[int]], calls: _Calls) -> list[int]:
    """What may come first from each state."""
    starts = [_union(sets) for sets in read]
    callers: dict[int, list[int]] = defaultdict(list)
    for state, edges in enumerate(calls):
        for start, _ in edges:
            callers[start].append(state)
    agenda = list(callers)
    while agenda:
        start = agenda.pop()
        for state in callers[start]:
            if starts[start] & ~starts[state]:
                starts[state] |= starts[start]
                if state in callers:
                    agenda.append(state)
    return starts


def _following(reads: _Reads, calls: _Calls, final: Sequence[bool], starts: Sequence[int]) -> list[int]:
    """What may come after the return from the rule that each state is of."""
    follows = [0] * len(final)
    agenda: list[int] = []

    def add(state: int, symbols: int) -> None:
        if symbols & ~follows[state]:
            follows[state] |= symbols
            agenda.append(state)

    for edges in calls:
        for start, after in edges:
            add(start, starts[after])
    while agenda:
        state = agenda.pop()
        for target, _, _ in reads[state]:
            add(target, follows[state])
        for start, after in calls[state]:
            add(after, follows[state])
            if final[after]:
                add(start, follows[state])
    return follows


def _union(sets: Iterable[int]) -> int:
    union = 0
    for one in sets:
        union |= one
    return union


def _are_disjoint(sets: Iterable[int]) -> bool:
    union = 0
    for one in sets:
        if union & one:
            return False
        union |= one
    return True
