"""Whether one language includes another, with a shortest string that it lacks.

A search over pairs of states finds a witness.  Where the search is too large, a simulation may still prove inclusion:
each step of the one network can be followed in the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from structgen_kernels import _native

from structgen.engine.analysis.byte_graph import byte_graphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine.analysis.byte_graph import ByteGraph, ByteNode
    from structgen.engine.constraint import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["MAX_PAIRS", "Inclusion", "Witness", "compare", "is_simulated"]

_Calls: TypeAlias = "tuple[int, ...]"
"""A state of a rule, after the states in which the rules around it go on after their calls, outermost first."""
_StatePair: TypeAlias = "tuple[_Calls, _Calls]"
_Clause: TypeAlias = "list[tuple[_StatePair, ...]]"
"""Alternatives, of which all pairs of one must correspond."""

_MAX_STATES: Final = 20_000
_MAX_STATE_PAIRS: Final = 100_000
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
    mine, theirs = _native.unfold_calls(one.native, _MAX_STATES), _native.unfold_calls(other.native, _MAX_STATES)
    if mine is None or theirs is None:
        return False
    columns = np.unique(np.concatenate([mine[0], theirs[0]]), axis=1)
    size = len(mine[0])
    networks = (
        _UnfoldedNetwork(columns[:size], mine[1].tolist(), mine[2].tolist(), mine[3].tolist()),
        _UnfoldedNetwork(columns[size:], theirs[1].tolist(), theirs[2].tolist(), theirs[3].tolist()),
    )
    return any(_Simulation(*networks, depth).holds() for depth in _DEPTHS)


@final
class _UnfoldedNetwork:
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

    def __init__(self, one: _UnfoldedNetwork, other: _UnfoldedNetwork, depth: int) -> None:
        self.one, self.other, self.depth = one, other, depth

    def holds(self) -> bool:
        """Whether the start of the other follows that of the one."""
        start: _StatePair = ((0,), (0,))
        needs: dict[_StatePair, list[_Clause]] = {}
        asked_by: dict[_StatePair, list[_StatePair]] = defaultdict(list)
        failed: list[_StatePair] = []
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
            if len(needs) > _MAX_STATE_PAIRS:
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

    def _needs(self, pair: _StatePair) -> list[_Clause]:
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


_NodePair: TypeAlias = "tuple[int, int]"
_Step: TypeAlias = "tuple[_NodePair, int]"

MAX_PAIRS: Final = 50_000
"""Pairs of states that a search looks at by default."""
_FIRST_PAIRS: Final = 2_000
"""Pairs after which a proof is tried that does not need all of them."""
_MAX_ENGINE_BYTES: Final = 128 << 20
"""What the engine may hold before a search is given up: in ambiguous languages, states grow with what was read."""
_CHECK_EVERY: Final = 64


@dataclass(frozen=True, slots=True)
class Witness:
    """A shortest member of one language that the other has not.

    Attributes:
        text: the member; special tokens are written by their names.
        offset: how many of its bytes some member of the other language begins with; its length where it only ends too
            soon for the other.
    """

    text: bytes
    offset: int

    @property
    def is_incomplete(self) -> bool:
        """Whether the other language has longer members that begin with it."""
        return self.offset == len(self.text)


@dataclass(frozen=True, slots=True)
class Inclusion:
    """What is known of whether a language has all members of another.

    Attributes:
        witness: a shortest member that it has not; None: none was found.
        checked_bytes: it has all members of at most so many bytes; None: it has all.
        pairs: how many pairs of states were looked at.
    """

    witness: Witness | None
    checked_bytes: int | None
    pairs: int

    @property
    def holds(self) -> bool | None:
        """Whether it has them all; None: not known."""
        if self.witness is not None:
            return False
        return True if self.checked_bytes is None else None


def compare(
    old: Grammar,
    new: Grammar,
    *,
    max_bytes: int | None = None,
    max_pairs: int = MAX_PAIRS,
    limits: Limits | None = None,
) -> tuple[Inclusion, Inclusion]:
    """Say whether ``new`` has all members of ``old``, and whether ``old`` has all of ``new``.

    The pairs of states that a text leads to are searched, those first that are on the way to the shortest members, each
    pair once.  Where there are finitely many, the answer is certain; so it is for all regular languages, and for
    others where what differs is regular, for a pair of equal states is not looked into.  It is certain, too, where the
    rules of the one can be followed step by step in those of the other (``is_simulated``).  Otherwise the search ends
    at ``max_pairs`` or ``max_bytes``, and says up to which length it is certain.  It cannot do better: whether one
    context-free language has all members of another is undecidable.

    Args:
        old: a closed term.
        new: a closed term.
        max_bytes: the length of the longest members that are compared; None: no bound.
        max_pairs: bounds each of the two searches, which also end where their states take too much memory.
        limits: for the compilation.

    Raises:
        UnsatisfiableGrammar, LimitExceeded, GrammarError: as ``byte_graphs``.

    Complexity: O(p * b) for p pairs and b blocks of bytes that some state tells apart.

    Source: J. E. Hopcroft, R. M. Karp, "A linear algorithm for testing equivalence of finite automata" (1971), for the
    search over pairs; P. E. Hart, N. J. Nilsson, B. Raphael (1968) for its order.
    """
    one, other = byte_graphs(old, new, limits=limits)
    return _compared(one, other, max_bytes, max_pairs), _compared(other, one, max_bytes, max_pairs)


def _compared(one: ByteGraph, other: ByteGraph, max_bytes: int | None, max_pairs: int) -> Inclusion:
    search = _WitnessSearch(one, other)
    found = search.run(max_bytes, min(max_pairs, _FIRST_PAIRS))
    if found.holds is None and is_simulated(one.constraint, other.constraint):
        return Inclusion(None, None, found.pairs)
    return search.run(max_bytes, max_pairs) if found.holds is None else found


@final
class _WitnessSearch:
    """Looks for a shortest member of ``these`` that is none of ``those``."""

    def __init__(self, these: ByteGraph, those: ByteGraph) -> None:
        self.these, self.those = these, those
        # A pair is known by the numbers of its nodes, -1 for none.  With it, how much was read on the shortest way that
        # was found to it, and the last step of that way.
        self.found: dict[_NodePair, tuple[int, _Step | None]] = {}
        self.done: set[_NodePair] = set()
        self.waiting: list[tuple[int, int, ByteNode, ByteNode | None]] = []
        self.order = 0

        self._meet(these.start, those.start, 0, None)

    def run(self, max_bytes: int | None, max_pairs: int) -> Inclusion:
        """Search until the answer is certain or a bound is reached; it may be called again with wider ones."""
        while self.waiting:
            least, _, mine, theirs = self.waiting[0]  # shorter members are known to be shared
            pair = _node_pair(mine, theirs)
            if pair not in self.done:
                if max_bytes is not None and least > max_bytes:
                    return Inclusion(None, max_bytes, len(self.done))
                is_look = len(self.done) % _CHECK_EVERY == 0
                if len(self.done) >= max_pairs or (is_look and self.these.constraint.engine_bytes > _MAX_ENGINE_BYTES):
                    return Inclusion(None, least - 1, len(self.done))
            heappop(self.waiting)
            if pair in self.done:
                continue
            self.done.add(pair)
            if theirs is None or (mine.is_accepting and not theirs.is_accepting):
                return Inclusion(self._witness(mine, theirs), None, len(self.done))
            those = self.those.successors(theirs)
            read = self.found[pair][0] + 1
            for label, after in self.these.successors(mine).items():
                self._meet(after, those.get(label), read, (pair, label))
        return Inclusion(None, None, len(self.done))

    def _meet(self, mine: ByteNode, theirs: ByteNode | None, read: int, step: _Step | None) -> None:
        pair = _node_pair(mine, theirs)
        if pair[0] == pair[1] or (pair in self.found and self.found[pair][0] <= read):
            return
        self.found[pair] = read, step
        self.order += 1
        heappush(self.waiting, (read + mine.distance, self.order, mine, theirs))

    def _witness(self, mine: ByteNode, theirs: ByteNode | None) -> Witness:
        pair = _node_pair(mine, theirs)
        symbols: list[int] = []
        while (step := self.found[pair][1]) is not None:
            pair, label = step
            symbols.append(self.these.likely(label)[0] if label >= 0 else label)
        symbols.reverse()
        shared = len(symbols) - (theirs is None)
        if theirs is None:
            symbols += mine.shortest_completion()
        written = [bytes([symbol]) if symbol >= 0 else self.these.special[-1 - symbol].encode() for symbol in symbols]
        return Witness(b"".join(written), len(b"".join(written[:shared])))


def _node_pair(mine: ByteNode, theirs: ByteNode | None) -> _NodePair:
    return mine.number, -1 if theirs is None else theirs.number
