"""Whether one language includes another, with a shortest string that it lacks.

A search over pairs of states finds a witness.  If the search is too large, a simulation may still prove inclusion:
each step of one network can be followed in the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from structgen_kernels import _native

from structgen.engine.analysis.byte_graph import byte_graphs
from structgen.engine.call_graph import distinct_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine.analysis.byte_graph import ByteGraph, ByteNode
    from structgen.engine.constraint import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["MAX_PAIRS", "Inclusion", "Witness", "compare", "included", "is_simulated"]

_Calls: TypeAlias = "tuple[int, ...]"
"""A call stack: the states after the return of the enclosing rules, outermost first, then the state of the rule."""
_StatePair: TypeAlias = "tuple[_Calls, _Calls]"
_Clause: TypeAlias = "list[tuple[_StatePair, ...]]"
"""Alternatives; all pairs of one of them must correspond."""

_MAX_STATES: Final = 20_000
_MAX_STATE_PAIRS: Final = 100_000
_DEPTHS: Final = (1, 2, 3)
"""Depths of call stacks to try, for the case that one network reads inside a call what the other reads without."""


def is_simulated(one: Constraint, other: Constraint) -> bool:
    """Return whether each step of ``one`` can be followed in ``other``; then ``other`` has all strings of ``one``.

    A call is matched by a call of a rule that simulates the called one, together with the states after the return, or
    by steps inside the called rule.  False means only that no proof was found.

    Complexity: O(p * e ** 2) for p pairs of states that may correspond and e edges of one; False beyond a limit.

    Source: D. Park, "Concurrency and automata on infinite sequences" (1981), for simulation; that it is sound for calls
    follows by induction on the number of steps of a run.
    """
    left, right = _native.unfold_calls(one.native, _MAX_STATES), _native.unfold_calls(other.native, _MAX_STATES)
    if left is None or right is None:
        return False
    columns, _ = distinct_columns(np.concatenate([left[0], right[0]]))
    size = len(left[0])
    networks = (
        _UnfoldedNetwork(columns[:size], left[1].tolist(), left[2].tolist(), left[3].tolist()),
        _UnfoldedNetwork(columns[size:], right[1].tolist(), right[2].tolist(), right[3].tolist()),
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
        # After a tail call there is no return to the calling rule.
        self.only_final = [
            bool(final_[state]) and not self.reads[state] and state not in self.calls for state in range(len(final_))
        ]

    def called(self, around: _Calls, start: int, after: int) -> _Calls:
        """Return the call stack after a call."""
        return (*around, start) if self.only_final[after] else (*around, after, start)

    def ways(self, at: _Calls, depth: int) -> Iterator[_Calls]:
        """Yield the call stacks that are reached from ``at`` without reading anything."""
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
    """The greatest simulation relation between call stacks, as far as the start pair depends on it."""

    def __init__(self, one: _UnfoldedNetwork, other: _UnfoldedNetwork, depth: int) -> None:
        self.one, self.other, self.depth = one, other, depth

    def holds(self) -> bool:
        """Return whether the start of ``other`` simulates the start of ``one``."""
        start: _StatePair = ((0,), (0,))
        needs: dict[_StatePair, list[_Clause]] = {}
        users: dict[_StatePair, list[_StatePair]] = defaultdict(list)
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
                users[each].append(pair)
                agenda.append(each)
            if len(needs) > _MAX_STATE_PAIRS:
                return False
        refuted = set(failed)
        while failed:
            for pair in users[failed.pop()]:
                if pair not in refuted and any(
                    all(any(each in refuted for each in pairs) for pairs in clause) for clause in needs[pair]
                ):
                    refuted.add(pair)
                    failed.append(pair)
        return start not in refuted

    def _needs(self, pair: _StatePair) -> list[_Clause]:
        """Return what must hold for a pair to correspond: one alternative of each clause; an empty clause fails."""
        left, right = pair
        one, other = self.one, self.other
        around, state = left[:-1], left[-1]
        ways = list(other.ways(right, self.depth))
        clauses: list[_Clause] = []
        if one.final[state]:
            if around:
                clauses.append([((around, right),)])
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
            if len(left) < self.depth:
                alternatives.append(((one.called(around, start, after), right),))
            clauses.append(alternatives)
        return clauses


_NodePair: TypeAlias = "tuple[int, int]"
_Step: TypeAlias = "tuple[_NodePair, int]"

MAX_PAIRS: Final = 50_000
"""Pairs of states that a search examines by default."""
_FIRST_PAIRS: Final = 2_000
"""Pairs after which a proof by simulation is tried."""
_MAX_ENGINE_BYTES: Final = 128 << 20
"""Memory of the engine at which a search ends: in ambiguous languages, states grow with the bytes read."""
_CHECK_EVERY: Final = 64


@dataclass(frozen=True, slots=True)
class Witness:
    """A shortest string of one language that the other does not have.

    Attributes:
        text: the string; special tokens are written by their names.
        offset: the length of its longest prefix that some string of the other language has; the whole length if it only
            ends too early for the other.
    """

    text: bytes
    offset: int

    @property
    def is_incomplete(self) -> bool:
        """Whether the other language has longer strings that begin with the text."""
        return self.offset == len(self.text)


@dataclass(frozen=True, slots=True)
class Inclusion:
    """Whether a language has all strings of another, as far as it is known.

    Attributes:
        witness: a shortest string that is missing; None if none was found.
        checked_bytes: no string of up to this length is missing; None if none is missing at all.
        pairs: how many pairs of states were examined.
    """

    witness: Witness | None
    checked_bytes: int | None
    pairs: int

    @property
    def holds(self) -> bool | None:
        """Whether the language has all strings; None if it is not known."""
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
    """Return whether ``new`` has all strings of ``old``, and whether ``old`` has all strings of ``new``.

    The search visits each pair of states that one prefix leads to in both, the pairs on the shortest strings first.
    The answer is certain if there are finitely many pairs: for all regular languages, and for others that differ in a
    regular part, because pairs of equal states are not expanded.  It is also certain if each step of one grammar can be
    followed in the other (``is_simulated``).  Otherwise the search ends at ``max_pairs`` or ``max_bytes`` and reports
    the length up to which it is certain; inclusion of context-free languages is undecidable.

    Args:
        old: a closed term.
        new: a closed term.
        max_bytes: the length of the longest strings to compare; None is no bound.
        max_pairs: bounds each of the two searches, which also end if their states take too much memory.
        limits: limits of the compilation.

    Raises:
        UnsatisfiableGrammar, LimitExceeded, GrammarError: as ``byte_graphs``.

    Complexity: O(p * b) for p pairs and b blocks of bytes with the same transitions.

    Source: J. E. Hopcroft, R. M. Karp, "A linear algorithm for testing equivalence of finite automata" (1971), for the
    search over pairs; P. E. Hart, N. J. Nilsson, B. Raphael (1968) for its order.
    """
    one, other = byte_graphs(old, new, limits=limits)
    return _compared(one, other, max_bytes, max_pairs), _compared(other, one, max_bytes, max_pairs)


def included(old: Grammar, new: Grammar, *, max_pairs: int, limits: Limits | None = None) -> bool | None:
    """Return whether ``new`` has all strings of ``old``; None if ``max_pairs`` do not tell.

    Unlike ``compare`` it does not look for a simulation, which takes long. Errors are those of ``compare``.
    """
    one, other = byte_graphs(old, new, limits=limits)
    return _WitnessSearch(one, other).run(None, max_pairs).holds


def _compared(one: ByteGraph, other: ByteGraph, max_bytes: int | None, max_pairs: int) -> Inclusion:
    search = _WitnessSearch(one, other)
    inclusion = search.run(max_bytes, min(max_pairs, _FIRST_PAIRS))
    if inclusion.holds is None and is_simulated(one.constraint, other.constraint):
        return Inclusion(None, None, inclusion.pairs)
    return search.run(max_bytes, max_pairs) if inclusion.holds is None else inclusion


@final
class _WitnessSearch:
    """Searches a shortest string of ``these`` that is not one of ``those``."""

    def __init__(self, these: ByteGraph, those: ByteGraph) -> None:
        self.these, self.those = these, those
        # By the numbers of the nodes of a pair, -1 for none: the length of the shortest path so far, and its last step.
        self.paths: dict[_NodePair, tuple[int, _Step | None]] = {}
        self.done: set[_NodePair] = set()
        self.waiting: list[tuple[int, int, ByteNode, ByteNode | None]] = []
        self.order = 0

        self._meet(these.start, those.start, 0, None)

    def run(self, max_bytes: int | None, max_pairs: int) -> Inclusion:
        """Search until the answer is certain or a bound is reached; may be called again with larger bounds."""
        while self.waiting:
            length, _, left, right = self.waiting[0]  # no shorter string is missing
            pair = _node_pair(left, right)
            if pair not in self.done:
                if max_bytes is not None and length > max_bytes:
                    return Inclusion(None, max_bytes, len(self.done))
                is_due = len(self.done) % _CHECK_EVERY == 0
                if len(self.done) >= max_pairs or (is_due and self.these.constraint.engine_bytes > _MAX_ENGINE_BYTES):
                    return Inclusion(None, length - 1, len(self.done))
            heappop(self.waiting)
            if pair in self.done:
                continue
            self.done.add(pair)
            if right is None or (left.is_accepting and not right.is_accepting):
                return Inclusion(self._witness(left, right), None, len(self.done))
            those = self.those.successors(right)
            read = self.paths[pair][0] + 1
            for label, after in self.these.successors(left).items():
                self._meet(after, those.get(label), read, (pair, label))
        return Inclusion(None, None, len(self.done))

    def _meet(self, left: ByteNode, right: ByteNode | None, read: int, step: _Step | None) -> None:
        pair = _node_pair(left, right)
        if pair[0] == pair[1] or (pair in self.paths and self.paths[pair][0] <= read):
            return
        self.paths[pair] = read, step
        self.order += 1
        heappush(self.waiting, (read + left.distance, self.order, left, right))

    def _witness(self, left: ByteNode, right: ByteNode | None) -> Witness:
        pair = _node_pair(left, right)
        symbols: list[int] = []
        while (step := self.paths[pair][1]) is not None:
            pair, label = step
            symbols.append(self.these.likely(label)[0] if label >= 0 else label)
        symbols.reverse()
        shared = len(symbols) - (right is None)
        if right is None:
            symbols += left.shortest_completion()
        written = [bytes([symbol]) if symbol >= 0 else self.these.special[-1 - symbol].encode() for symbol in symbols]
        return Witness(b"".join(written), len(b"".join(written[:shared])))


def _node_pair(left: ByteNode, right: ByteNode | None) -> _NodePair:
    return left.number, -1 if right is None else right.number
