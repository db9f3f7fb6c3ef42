"""Grammars as recursive transition networks over bytes, with as few calls as possible.

Rules that are not needed for recursion are inlined, so that a token crosses few calls: recursive JSON keeps one called
rule, the value, whose automaton holds arrays, objects, strings and numbers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from structgen_kernels import _native

from structgen.engine.call_graph import CallGraph, distinct_columns, is_deterministic
from structgen.errors import LimitExceeded
from structgen.grammar.limits import spend, spend_steps, steps_left

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from structgen.engine.constraint import Constraint

__all__ = ["MAX_STATES", "Network", "network_of", "recurs"]

MAX_STATES: Final = 20_000
"""States of a network, before and after inlining."""

_MAX_RULE_PAIRS: Final = 5_000_000
"""Pairs of rules that are examined to choose the rules whose calls remain."""

NestedState: TypeAlias = "tuple[int, ...]"
"""States of nested inlined rules, from the outermost to the one that reads."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A recursive transition network; state 0 is the start.  From a state a byte is read, or a rule is called.

    Every call reads at least one byte; a rule that matches the empty string can also be skipped.

    Attributes:
        next: int32 ``[states, 256]``; -1 where the byte is not allowed.
        final: bool ``[states]``: the rule may end here.
        calls: (state, start of the rule, state after its return).
        specials: (state, id of a special token, state after it).
        is_deterministic: every string has at most one run, and the next byte decides each step of it.
    """

    next: NDArray[np.int32]
    final: NDArray[np.bool_]
    calls: tuple[tuple[int, int, int], ...]
    specials: tuple[tuple[int, int, int], ...]
    is_deterministic: bool

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.next)


def network_of(constraint: Constraint, *, max_states: int = MAX_STATES) -> Network:
    """Return the network of a constraint with few calls, minimised.

    Raises:
        LimitExceeded: it has more than ``max_states`` states, or the steps of the call are counted and used up.

    Complexity: O(states x distinct bytes) for each round of minimising, after inlining, which is counted.
    """
    raw = _nested_rules(constraint, max_states)
    if raw is None:
        raise _too_many(max_states)
    for called in raw.choices_of_called_rules():
        try:
            return _minimal(raw.with_calls_of(called, max_states))
        except LimitExceeded:  # more calls need fewer states
            if called == raw.starts:
                raise
    raise RuntimeError("no set of called rules was tried")


_STEPS_OF_STATE: Final = 160
"""To make a state of the engine's network, without its transitions."""

_STEPS_OF_ENTRY: Final = 512
"""To copy the state into Python objects."""

_STEPS_OF_TERM: Final = 16


def recurs(constraint: Constraint) -> bool:
    """Return whether some rule of a constraint is recursive, and may be part of a text.

    A language without recursive rules is regular; one with recursive rules may be.

    Raises:
        LimitExceeded: the steps of the call are counted and used up.

    Complexity: O(terms of the grammar).
    """
    recursive, terms = _native.may_recur(constraint.native)
    spend_steps(_STEPS_OF_TERM * terms, "network of a grammar", f"it has {terms} terms")
    return recursive


def _nested_rules(constraint: Constraint, max_states: int) -> _NestedRules | None:
    """The network of the engine; None if it has more than ``max_states`` states.

    What it takes to enter the states is counted as they are made, so that a limit is met early.
    """
    steps, made = _native.counted_calls(
        constraint.native, max_states, _STEPS_OF_STATE + _STEPS_OF_ENTRY, steps_left(_UNBOUNDED)
    )
    spend_steps(steps, "network of a grammar", "to make its states and to enter them is counted")
    return None if made is None else _NestedRules(*made)


_UNBOUNDED: Final = 1 << 62


def _too_many(max_states: int) -> LimitExceeded:
    return LimitExceeded(
        "network of a grammar",
        limit="max_states",
        maximum=max_states,
        remedy="bound repetitions, or raise max_states",
    )


def _targets(columns: NDArray[np.int32]) -> list[list[int]]:
    """The states after each state, in the order of the bytes."""
    changes = columns >= 0
    changes[:, 1:] &= columns[:, 1:] != columns[:, :-1]
    reached, ends = columns[changes].tolist(), np.cumsum(changes.sum(axis=1)).tolist()
    return [list(dict.fromkeys(reached[first:last])) for first, last in pairwise([0, *ends])]


class _NestedRules:
    """The network of the engine, with one automaton for each called rule."""

    def __init__(
        self, next_: NDArray[np.int32], final_: NDArray[np.uint8], calls: NDArray[np.int32], specials: NDArray[np.int32]
    ) -> None:
        self.columns, self.kind_of_byte = distinct_columns(next_)
        self.kinds = self.columns.shape[1]
        self.targets = _targets(self.columns)
        self.final: list[bool] = final_.astype(bool).tolist()
        self.calls: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for state, start, after in calls.tolist():
            self.calls[state].append((start, after))
        self.specials: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for state, token, after in specials.tolist():
            self.specials[state].append((token, after))
        self.starts = frozenset(calls[:, 1].tolist())
        # From these only bytes lead on.
        self.is_plain = [
            not (final or state in self.calls or state in self.specials) for state, final in enumerate(self.final)
        ]
        self.only_final = [
            self.final[state] and not self.targets[state] and not self.calls[state] and not self.specials[state]
            for state in range(len(next_))
        ]
        self.nullable = list(self.final)
        grown = True
        while grown:
            grown = False
            for state in range(len(next_)):
                if not self.nullable[state] and any(
                    self.nullable[start] and self.nullable[after] for start, after in self.calls[state]
                ):
                    self.nullable[state] = grown = True

    def callees(self) -> dict[int, set[tuple[int, bool]]]:
        """Return for each rule, named by its start, the rules that it calls, and whether each is a tail call."""
        return {start: self._callees(start) for start in {0, *self.starts}}

    def choices_of_called_rules(self) -> Iterable[frozenset[int]]:
        """Yield sets of rules whose calls may remain, best first: the other rules are not recursive without them."""
        callees = self.callees()
        graph = CallGraph(callees)
        found: list[frozenset[int]] = []
        tried = 0
        for count in range(4):
            for chosen in combinations(graph.recursive, count):
                tried += 1
                if tried * len(graph.recursive) ** 2 > _MAX_RULE_PAIRS and count > 1:
                    break
                if not graph.recurs_without(chosen):
                    found.append(frozenset(chosen))
            if found:
                break
        # Prefer rules that are called at many sites, which inlining would copy; then the first.
        sites: dict[int, int] = defaultdict(int)
        for inner in callees.values():
            for start, _ in inner:
                sites[start] += 1
        found.sort(key=lambda chosen: (-sum(sites[start] for start in chosen), sorted(chosen)))
        yield from found[:3]
        if graph.recursive:
            yield frozenset(graph.recursive)
        yield self.starts

    def _callees(self, start: int) -> set[tuple[int, bool]]:
        """Return the rules that a rule calls, and whether each is a tail call."""
        seen, agenda = {start}, [start]
        found = set()
        while agenda:
            state = agenda.pop()
            after = {*self.targets[state], *(target for _, target in self.specials[state])}
            for callee, target in self.calls[state]:
                found.add((callee, self.only_final[target]))
                after.add(target)
            agenda.extend(after - seen)
            seen |= after
        return found

    def with_calls_of(self, called: frozenset[int], max_states: int) -> _Table:
        """Inline all rules but ``called``, and make each automaton deterministic."""
        table = _Table(self.kind_of_byte)
        numbers: dict[frozenset[NestedState], int] = {}
        agenda: list[tuple[frozenset[NestedState], bool, dict[int, frozenset[NestedState]]]] = []
        rows: list[list[int]] = []
        # States that are one nested state: by what it is nested in, the states and their innermost states; and the
        # numbers after a byte, by the innermost state that it leads to.
        singles: dict[NestedState, list[tuple[int, int]]] = defaultdict(list)
        numbers_after: dict[NestedState, dict[int, int]] = defaultdict(dict)

        def number_of(items: Iterable[NestedState]) -> int:
            frozen = frozenset(items)
            number = numbers.get(frozen)
            if number is not None:
                return number
            is_plain = all(self.is_plain[item[-1]] for item in frozen)
            closed = (frozen, False, {}) if is_plain else self._closed(frozen, called)
            number = numbers[frozen] = numbers.setdefault(closed[0], len(agenda))
            if number == len(agenda):
                agenda.append(closed)
                if len(agenda) > max_states:
                    raise _too_many(max_states)
            return number

        number_of([(0,)])
        start_of = {frame: number_of([(frame,)]) for frame in sorted(called)}
        state = 0
        while state < len(agenda):
            items, is_final, calls = agenda[state]
            row = [-1] * self.kinds
            by_token: dict[int, set[NestedState]] = defaultdict(set)
            if len(items) == 1:  # as most are: one look-up for each state that is reached, not for each byte
                (item,) = items
                spend(12 + 4 * len(self.targets[item[-1]]), "network of a grammar", f"it has more than {state} states")
                number_after = numbers_after[item[:-1]]
                for target in self.targets[item[-1]]:
                    if target not in number_after:
                        number_after[target] = number_of([self._after(item, target)])
                singles[item[:-1]].append((state, item[-1]))
            else:
                spend(2 * self.kinds * len(items) + 12, "network of a grammar", f"it has more than {state} states")
                for kind, reached in self._by_kind(items):
                    row[kind] = number_of(reached)
            for item in items:
                for token, target in self.specials.get(item[-1], ()):
                    by_token[token].add((*item[:-1], target))
            rows.append(row)
            table.final.append(is_final)
            table.calls.extend((state, start_of[frame], number_of(after)) for frame, after in sorted(calls.items()))
            table.specials.extend((state, token, number_of(reached)) for token, reached in sorted(by_token.items()))
            state += 1
        table.rows = np.array(rows, dtype=np.int32).reshape(len(rows), self.kinds)
        for below, held in singles.items():
            after = np.full(len(self.columns) + 1, -1, dtype=np.int32)  # the last one is for what is not allowed
            after[list(numbers_after[below])] = list(numbers_after[below].values())
            of, inner = np.array(held).T
            table.rows[of] = after[self.columns[inner]]
        return table

    def _by_kind(self, items: Iterable[NestedState]) -> list[tuple[int, set[NestedState]]]:
        """The nested states after each kind of byte, in ascending order."""
        by_kind: dict[int, set[NestedState]] = defaultdict(set)
        for item in items:
            for kind, target in enumerate(self.columns[item[-1]].tolist()):
                if target >= 0:
                    by_kind[kind].add(self._after(item, target))
        return sorted(by_kind.items())

    def _after(self, item: NestedState, target: int) -> NestedState:
        """The item after a byte that leads to a state of its innermost rule; a rule with only its end left, ends."""
        below = item[:-1]
        return below if below and self.only_final[target] else (*below, target)

    def _closed(
        self, items: frozenset[NestedState], called: frozenset[int]
    ) -> tuple[frozenset[NestedState], bool, dict[int, frozenset[NestedState]]]:
        """Add the states that are reached without reading: returns, inlined rules, and tail calls of called rules."""
        while True:
            seen, agenda = set(items), list(items)
            calls: dict[int, set[NestedState]] = defaultdict(set)
            is_final = False
            while agenda:
                item = agenda.pop()
                below = item[:-1]
                new = []
                if self.final[item[-1]]:
                    if below:
                        new.append(below)
                    else:
                        is_final = True
                for start, after in self.calls[item[-1]]:
                    rest = below if below and self.only_final[after] else (*below, after)
                    if start in called:
                        calls[start].add(rest)
                        if self.nullable[start]:
                            new.append(rest)
                    else:
                        new.append((start,) if self.only_final[after] and not below else (*rest, start))
                for one in new:
                    if one not in seen:
                        seen.add(one)
                        agenda.append(one)
            last = {start for start, after in calls.items() if self._ends(after)}
            jumps = {(start,) for start in last} - items
            if not jumps:
                remaining = {start: frozenset(after) for start, after in calls.items() if start not in last}
                return frozenset(seen), is_final, remaining
            items |= jumps

    def _ends(self, after: set[NestedState]) -> bool:
        return all(len(item) == 1 and self.only_final[item[0]] for item in after)


class _Table:
    """A network under construction."""

    def __init__(self, kind_of_byte: NDArray[np.intp]) -> None:
        self.kind_of_byte = kind_of_byte
        self.rows: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self.final: list[bool] = []
        self.calls: list[tuple[int, int, int]] = []
        self.specials: list[tuple[int, int, int]] = []


def _equal_blocks(table: _Table, targets: NDArray[np.int32]) -> NDArray[np.int32]:
    """The block of each state in the coarsest partition in which equal blocks have equal continuations.

    Bytes are followed natively. What a state calls and its special tokens, by blocks, are a mark of the state: an edge
    with a label of its own. Marks are made again until no block is divided; that takes few rounds, since a round
    divides along whole chains of bytes.
    """
    states = len(targets)
    next_ = np.full((states + 1, targets.shape[1]), -1, dtype=np.int32)  # marks lead to the last state
    next_[:states] = targets
    accepting = np.array([*table.final, False], dtype=np.uint8)
    others: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for state, start, after in table.calls:
        others[state].append((-1, start, after))
    for state, token, after in table.specials:
        others[state].append((token, state, after))
    block, count = np.zeros(states, dtype=np.int32), 0
    while True:
        spend(states + 2 * len(others), "network of a grammar", f"it has {states} states")
        held = block.tolist()
        marks: dict[frozenset[tuple[int, int, int]], int] = {}
        edges = [
            (state, marks.setdefault(_mark(of_state, held), len(marks)), states) for state, of_state in others.items()
        ]
        block = _native.equal_futures(next_, accepting, np.array(edges, dtype=np.int32).reshape(-1, 3))[:states]
        count, before = len(np.unique(block)), count
        if count == before:
            return block


def _mark(edges: list[tuple[int, int, int]], block: list[int]) -> frozenset[tuple[int, int, int]]:
    return frozenset((token, block[start] if token < 0 else -1, block[after]) for token, start, after in edges)


def _minimal(table: _Table) -> Network:
    """Merge states with equal continuations."""
    targets = np.asarray(table.rows)
    _, first, block = np.unique(_equal_blocks(table, targets), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    order = np.argsort(first, kind="stable")
    rank[order] = np.arange(len(first))
    block, representatives = rank[block.reshape(-1)], first[order]
    merged = targets[representatives]
    columns = np.where(merged >= 0, block[np.maximum(merged, 0)], -1).astype(np.int32)
    next_ = columns[:, table.kind_of_byte]
    final_ = np.array(table.final, dtype=bool)[representatives]
    renamed = block.tolist()
    calls = tuple(sorted({(renamed[state], renamed[start], renamed[after]) for state, start, after in table.calls}))
    specials = tuple(sorted({(renamed[state], token, renamed[after]) for state, token, after in table.specials}))
    return Network(
        np.ascontiguousarray(next_), final_, calls, specials, _is_deterministic(columns, final_, calls, specials)
    )


def _is_deterministic(
    columns: NDArray[np.int32],
    final_: NDArray[np.bool_],
    calls: Iterable[tuple[int, int, int]],
    specials: Iterable[tuple[int, int, int]],
) -> bool:
    """Return whether the next symbol decides each step; symbols are kinds of bytes, and special tokens after them."""
    states, kinds = columns.shape
    symbols_of: dict[bytes, tuple[int, ...]] = {}
    reads: list[list[tuple[int, tuple[int, ...], int]]] = []
    # The bytes of a state never compete with each other, so all of them are given with its first target.
    for allowed, targets in zip(columns >= 0, _targets(columns), strict=True):
        key = allowed.tobytes()
        if key not in symbols_of:
            symbols_of[key] = tuple(np.flatnonzero(allowed).tolist())
        reads.append([(target, () if at else symbols_of[key], 1) for at, target in enumerate(targets)])
    for state, token, target in specials:
        reads[state].append((target, (kinds + token,), 1))
    called: list[list[tuple[int, int]]] = [[] for _ in range(states)]
    for state, start, after in calls:
        called[state].append((start, after))
    return is_deterministic(reads, called, final_.tolist())
