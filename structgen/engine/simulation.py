"""A proof that one recursive language has all members of another: each step of the one can be followed in the other."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from structgen_kernels import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine.constraint import Constraint

__all__ = ["is_simulated"]

_Calls: TypeAlias = "tuple[int, ...]"
"""A state of a rule, behind the states in which the rules around it go on after their calls, outermost first."""
_Pair: TypeAlias = "tuple[_Calls, _Calls]"
_Clause: TypeAlias = "list[tuple[_Pair, ...]]"
"""Alternatives, of which all pairs of one must correspond."""

_MOST_STATES: Final = 20_000
_MOST_PAIRS: Final = 100_000
_DEPTHS: Final = (1, 2, 3)
"""How many places to go on at are remembered, where the one reads inside a call what the other reads without."""


def is_simulated(one: Constraint, other: Constraint) -> bool:
    """Whether each step of ``one`` can be followed in ``other``; then ``other`` has all members of ``one``.

    A call is followed by a call of a rule that follows the called one, with what comes after the return, or by reading
    inside what is called.  If no step-by-step proof is found, nothing is known.

    Complexity: O(p * e ** 2) for p pairs of states that may correspond and e edges of one; too many prove nothing.

    Source: D. Park, "Concurrency and automata on infinite sequences" (1981), for simulation; that it is sound for calls
    follows by induction on the number of steps of a run.
    """
    mine, theirs = _native.unfold_calls(one.native, _MOST_STATES), _native.unfold_calls(other.native, _MOST_STATES)
    if mine is None or theirs is None:
        return False
    columns = np.unique(np.concatenate([mine[0], theirs[0]]), axis=1)
    size = len(mine[0])
    networks = (
        _Network(columns[:size], mine[1].tolist(), mine[2].tolist(), mine[3].tolist()),
        _Network(columns[size:], theirs[1].tolist(), theirs[2].tolist(), theirs[3].tolist()),
    )
    return any(_Simulation(*networks, depth).holds() for depth in _DEPTHS)


@final
class _Network:
    """The rules of a language: for each state, its targets by symbol (kind of byte, or -1 - id), and its calls."""

    def __init__(
        self,
        columns: np.ndarray[tuple[int, int], np.dtype[np.int32]],
        final_: list[int],
        calls: list[list[int]],
        specials: list[list[int]],
    ) -> None:
        self.final = final_
        self.reads: list[dict[int, int]] = [
            {symbol: target for symbol, target in enumerate(row) if target >= 0} for row in columns.tolist()
        ]
        for state, token, after in specials:
            self.reads[state][-1 - token] = after
        self.calls: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for state, start, after in calls:
            self.calls[state].append((start, after))
        # A rule that does nothing after a call is not gone back to.
        self.only_final = [
            bool(final_[state]) and not self.reads[state] and state not in self.calls for state in range(len(final_))
        ]

    def called(self, around: _Calls, start: int, after: int) -> _Calls:
        """Where a call leads to."""
        return (*around, start) if self.only_final[after] else (*around, after, start)

    def ways(self, at: _Calls, depth: int) -> Iterator[_Calls]:
        """Yield where the one who is at a place may be taken to be, before anything more is read."""
        seen, agenda = {at}, [at]
        while agenda:
            here = agenda.pop()
            yield here
            around, state = here[:-1], here[-1]
            further = [around] if around and self.final[state] else []
            if len(here) < depth:
                further += [self.called(around, start, after) for start, after in self.calls.get(state, ())]
            for each in further:
                if each not in seen:
                    seen.add(each)
                    agenda.append(each)


@final
class _Simulation:
    """The greatest relation of places that follow each other, as far as the starts depend on it."""

    def __init__(self, one: _Network, other: _Network, depth: int) -> None:
        self.one, self.other, self.depth = one, other, depth

    def holds(self) -> bool:
        """Whether the start of the other follows that of the one."""
        start: _Pair = ((0,), (0,))
        needs: dict[_Pair, list[_Clause]] = {}
        asked_by: dict[_Pair, list[_Pair]] = defaultdict(list)
        failed: list[_Pair] = []
        agenda = [start]
        while agenda:
            pair = agenda.pop()
            if pair in needs:
                continue
            clauses = self._needs(pair)
            needs[pair] = clauses
            if not all(clauses):
                failed.append(pair)
                continue
            for each in {each for clause in clauses for pairs in clause for each in pairs}:
                asked_by[each].append(pair)
                agenda.append(each)
            if len(needs) > _MOST_PAIRS:
                return False
        refuted = set(failed)
        while failed:
            for pair in asked_by[failed.pop()]:
                if pair not in refuted and any(
                    all(any(each in refuted for each in pairs) for pairs in clause) for clause in needs[pair]
                ):
                    refuted.add(pair)
                    failed.append(pair)
        return start not in refuted

    def _needs(self, pair: _Pair) -> list[_Clause]:
        """What must hold for a pair to correspond: of each clause one alternative; an empty clause has none."""
        mine, theirs = pair
        one, other = self.one, self.other
        around, state = mine[:-1], mine[-1]
        ways = list(other.ways(theirs, self.depth))
        clauses: list[_Clause] = []
        if one.final[state]:
            if around:
                clauses.append([((around, theirs),)])
            elif not any(len(way) == 1 and other.final[way[0]] for way in ways):
                return [[]]
        for symbol, target in one.reads[state].items():
            following = [(*way[:-1], other.reads[way[-1]][symbol]) for way in ways if symbol in other.reads[way[-1]]]
            clauses.append([(((*around, target), each),) for each in following])
            if not following:
                return [[]]
        for start, after in one.calls.get(state, ()):
            alternatives: _Clause = [
                (((start,), (start_,)), ((*around, after), (*way[:-1], after_)))
                for way in ways
                for start_, after_ in other.calls.get(way[-1], ())
            ]
            if len(mine) < self.depth:
                alternatives.append(((one.called(around, start, after), theirs),))
            clauses.append(alternatives)
        return clauses
