"""Which texts a lexer takes for a terminal, and what may then not follow.

A *behaviour* is the smallest deterministic automaton of the lexemes of one terminal: an end of it bears the guard
that holds behind the lexeme.  Equal behaviours are one object, whatever lexers they come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from structgen.errors import LimitExceeded
from structgen.frontends.lark.contextual.graph import equivalence_classes, paths
from structgen.frontends.lark.contextual.guard import Guards
from structgen.frontends.lark.contextual.lexer_automaton import LexerAutomaton
from structgen.grammar.nodes import Grammar

__all__ = ["Behaviour", "Lexemes"]

_LexemeState: TypeAlias = tuple[int, int]
"""A state of the machine and the guard that the lexeme is read under."""

_COMPARED: Final = 20_000
"""Pairs of states that are looked at to see whether a language is that of the terminal as it is written."""


class Behaviour:
    """The lexemes of a terminal in some context.

    Attributes:
        number: which one it is.
        edges: by state, the next state by letters; state 0 is the first.
        ends: the guard behind a lexeme that ends in a state; each state leads to one of these.
        first: the letters that a lexeme may begin with.
    """

    __slots__ = ("edges", "ends", "first", "number")

    def __init__(self, number: int, edges: tuple[tuple[tuple[int, int], ...], ...], ends: dict[int, int]) -> None:
        self.number = number
        self.edges = edges
        self.ends = ends
        self.first = 0
        for letters, _ in edges[0] if edges else ():
            self.first |= letters

    @property
    def guards(self) -> list[int]:
        """The guards behind its lexemes."""
        return sorted(set(self.ends.values()))


class Lexemes:
    """All behaviours of a grammar."""

    def __init__(
        self, machine: LexerAutomaton, guards: Guards, plain: dict[str, Grammar], max_states: int, subject: str
    ) -> None:
        """Prepare for ``plain``: the texts of each terminal as it is written, where that is a term."""
        self.machine = machine
        self.guards = guards
        self._plain = plain
        self._max_states = max_states
        self._subject = subject
        self._next: dict[_LexemeState, list[tuple[int, _LexemeState]]] = {}
        self._behaviours: dict[object, Behaviour] = {}
        self._known: dict[tuple[int, int, str, frozenset[str], int], Behaviour] = {}
        self._terms: dict[tuple[int, frozenset[int]], Grammar] = {}
        self._reached: dict[_LexemeState, list[_LexemeState]] = {}

    def behaviour(self, state: int, guard: int, token: str, ignored: frozenset[str], readable: int) -> Behaviour:
        """The lexemes of ``token`` from a state of the machine on.

        Args:
            state: a first state of a lexer.
            guard: holds for the text that is read.
            token: the terminal, or ``""`` for all that are ignored.
            ignored: the terminals that are ignored.
            readable: the letters that may come next behind them.
        """
        key = (state, guard, token, ignored, readable)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make((state, guard), token, ignored, readable)
        return found

    def _following(self, node: _LexemeState) -> list[tuple[int, _LexemeState]]:
        found = self._next.get(node)
        if found is None:
            state, guard = node
            found = []
            for letters, target in self.machine.following(state).items():
                found += [(part, (target, after)) for part, after in self.guards.divide(guard, letters)]
            self._next[node] = found
            if len(self._next) > self._max_states:
                raise LimitExceeded(
                    self._subject,
                    limit="regular_states",
                    maximum=self._max_states,
                    evidence="its lexers need more",
                    remedy='lower the counts of its regexps, or use lexer="any"',
                )
        return found

    def _nodes(self, root: _LexemeState) -> list[_LexemeState]:
        found = self._reached.get(root)
        if found is None:
            seen = {root}
            found = [root]
            for node in found:
                for _, target in self._following(node):
                    if target not in seen:
                        seen.add(target)
                        found.append(target)
            self._reached[root] = found
        return found

    def _make(self, root: _LexemeState, token: str, ignored: frozenset[str], readable: int) -> Behaviour:
        ends: dict[_LexemeState, int] = {}
        for node in self._nodes(root):
            for tried, counted, following in self.machine.ends[node[0]]:
                if (tried in ignored) if token == "" else (counted == token and tried not in ignored):
                    guard = self.guards.after(node[0], following, readable)
                    ends[node] = self.guards.both(self.guards.restricted(node[1], readable), guard)
        sources: dict[_LexemeState, list[_LexemeState]] = {}
        for node in self._nodes(root):
            for _, target in self._following(node):
                sources.setdefault(target, []).append(node)
        useful = set(ends)
        work = list(ends)
        while work:
            for node in sources.get(work.pop(), ()):
                if node not in useful:
                    useful.add(node)
                    work.append(node)
        if root not in useful:
            return self._interned((), {})
        nodes = [node for node in self._nodes(root) if node in useful]
        return self._numbered(root, equivalence_classes(nodes, self._next, ends.get), ends)

    def _merged(self, node: _LexemeState, classes: dict[_LexemeState, int]) -> dict[int, int]:
        merged: dict[int, int] = {}
        for letters, target in self._following(node):
            number = classes.get(target)
            if number is not None:
                merged[number] = merged.get(number, 0) | letters
        return merged

    def _numbered(
        self, root: _LexemeState, classes: dict[_LexemeState, int], ends: dict[_LexemeState, int]
    ) -> Behaviour:
        example = {number: node for node, number in reversed(classes.items())}
        order = {classes[root]: 0}
        listed = [classes[root]]
        edges: list[tuple[tuple[int, int], ...]] = []
        final: dict[int, int] = {}
        for number in listed:
            row = sorted(
                (letters & -letters, letters, target)
                for target, letters in self._merged(example[number], classes).items()
            )
            for _, _, target in row:
                if target not in order:
                    order[target] = len(order)
                    listed.append(target)
            if example[number] in ends:
                final[order[number]] = ends[example[number]]
            edges.append(tuple((letters, order[target]) for _, letters, target in row))
        return self._interned(tuple(edges), final)

    def _interned(self, edges: tuple[tuple[tuple[int, int], ...], ...], ends: dict[int, int]) -> Behaviour:
        key = (edges, tuple(sorted(ends.items())))
        found = self._behaviours.get(key)
        if found is None:
            found = self._behaviours[key] = Behaviour(len(self._behaviours), edges, ends)
        return found

    def term(self, behaviour: Behaviour, guards: frozenset[int], token: str) -> Grammar:
        """The lexemes behind which one of ``guards`` holds."""
        key = (behaviour.number, guards)
        found = self._terms.get(key)
        if found is None:
            accepting = {state for state, guard in behaviour.ends.items() if guard in guards}
            plain = self._plain.get(token)
            if plain is not None and self._is_plain(behaviour, accepting, token):
                found = plain
            else:
                term = self.machine.alphabet.term
                graph = {
                    state: [(term(letters), target) for letters, target in row]
                    for state, row in enumerate(behaviour.edges)
                }
                found = paths(graph, dict.fromkeys(accepting, True), self._subject)[0][True]
            self._terms[key] = found
        return found

    def _is_plain(self, behaviour: Behaviour, accepting: Iterable[int], token: str) -> bool:
        """Whether the language is that of the terminal as it is written."""
        machine = self.machine
        final = set(accepting)
        root = (0, machine.texts(token))
        seen = {root}
        work: list[tuple[int, frozenset[int]]] = [root]
        while work:
            state, places = work.pop()
            if machine.is_match(places) != (state in final) or len(seen) > _COMPARED:
                return False
            left = machine.alphabet.all & ~machine.alphabet.end
            for letters, target in behaviour.edges[state]:
                left &= ~letters
                for _, following in machine.read(places, letters):
                    pair = (target, following)
                    if pair not in seen:
                        seen.add(pair)
                        work.append(pair)
            if any(following for _, following in machine.read(places, left)):
                return False
        return True
