"""Properties of networks: which rules call which, which calls may be inlined, and whether the next symbol decides."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["CallGraph", "distinct_columns", "is_deterministic"]

_Reads: TypeAlias = "Sequence[Sequence[tuple[int, tuple[int, ...], int]]]"
_Calls: TypeAlias = "Sequence[Sequence[tuple[int, int]]]"


@final
class CallGraph:
    """Which rules call which.

    Attributes:
        recursive: the rules that may call themselves, directly or not, ascending.
    """

    def __init__(self, callees: dict[int, set[tuple[int, bool]]]) -> None:
        starts = sorted(callees)
        index = {start: at for at, start in enumerate(starts)}
        calls = np.zeros((len(starts), len(starts)), dtype=bool)
        inner = np.zeros_like(calls)  # calls that are not tail calls
        for start, found in callees.items():
            for callee, is_last in found:
                calls[index[start], index[callee]] = True
                inner[index[start], index[callee]] |= not is_last
        cyclic = np.flatnonzero(np.diagonal(_closure(calls)))
        self.recursive = [starts[at] for at in cyclic.tolist()]
        self._calls, self._inner = calls[np.ix_(cyclic, cyclic)], inner[np.ix_(cyclic, cyclic)]

    def recurs_without(self, called: Iterable[int]) -> bool:
        """Return whether some rule is still recursive without the calls of ``called``, tail calls left aside."""
        is_left = ~np.isin(self.recursive, list(called))
        reached = _closure(self._calls[np.ix_(is_left, is_left)])
        return bool((self._inner[np.ix_(is_left, is_left)] & reached.T).any())


def _closure(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the transitive closure: reached by one edge or more."""
    reached = edges
    while True:
        further = reached | ((reached.astype(np.float32) @ reached.astype(np.float32)) > 0)
        if np.array_equal(further, reached):
            return reached
        reached = further


def distinct_columns(table: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """The distinct columns of a table, in the order of their first occurrence; and for each column, which it is."""
    number_of: dict[bytes, int] = {}
    firsts: list[int] = []
    kinds = np.empty(table.shape[1], dtype=np.intp)
    for index, column in enumerate(np.ascontiguousarray(table.T)):
        kinds[index] = number_of.setdefault(column.tobytes(), len(number_of))
        if len(number_of) > len(firsts):
            firsts.append(index)
    return table[:, firsts], kinds


def is_deterministic(reads: _Reads, calls: _Calls, final: Sequence[bool]) -> bool:
    """Return whether the next symbol decides between the edges of a state, its calls, and the return.

    A string then has at most one run.  Every call reads at least one symbol.

    Complexity: O((e + c) * s) for e edges, c calls and sets of s symbols, and rounds of them along recursion.

    Source: P. M. Lewis, R. E. Stearns, "Syntax-directed transduction" (1968, JACM 15), for LL(1) grammars.
    """
    as_set = _Sets()
    read = [[as_set(symbols) for _, symbols, _ in edges if symbols] for edges in reads]
    starts = _first(read, calls)
    follows = _following(reads, calls, final, starts)
    return all(
        _are_disjoint([*read[state], *(starts[start] for start, _ in calls[state]), *[follows[state]] * final[state]])
        for state in range(len(final))
        if calls[state] or final[state] or len(read[state]) > 1
    )


class _Sets:
    """Sets of symbols as bits of an integer."""

    def __init__(self) -> None:
        self._bit: dict[int, int] = {}
        self._sets: dict[tuple[int, ...], int] = {}

    def __call__(self, symbols: tuple[int, ...]) -> int:
        if symbols not in self._sets:
            self._sets[symbols] = _union(1 << self._bit.setdefault(symbol, len(self._bit)) for symbol in symbols)
        return self._sets[symbols]


def _first(read: Sequence[Sequence[int]], calls: _Calls) -> list[int]:
    """Return the symbols that may come first from each state."""
    starts = [sets[0] if len(sets) == 1 else _union(sets) for sets in read]
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
    """Return the symbols that may come after the return from the rule of each state."""
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
    return reduce(or_, sets, 0)


def _are_disjoint(sets: Iterable[int]) -> bool:
    union = 0
    for one in sets:
        if union & one:
            return False
        union |= one
    return True
