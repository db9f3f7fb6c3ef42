"""Contexts: the lexer that reads the next terminal, and the guard that holds there.

Lark reads the text after a terminal with the lexer of the parser state that the terminal was shifted to, before
anything is reduced.  Lexers that take the same strings for every terminal that both have are one *kind*: a terminal
that only one of them has cannot come where the other one reads.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from structgen.frontends.lark.contextual.graph import paths
from structgen.frontends.lark.contextual.lexeme import FREE, Behaviour, Lexemes
from structgen.frontends.lark.contextual.lexer_automaton import DEAD
from structgen.frontends.lark.contextual.table import Tables
from structgen.grammar.nodes import Grammar

__all__ = ["Context", "Contexts", "Piece"]

_IGNORED: Final = ""


class Context(NamedTuple):
    """Where the next terminal is read.

    Attributes:
        kind: the kind of the lexer.
        guard: what the text must not begin with.
        forbidden: terminals that must not come next, because the parser would not have reduced a rule before them.
    """

    kind: int
    guard: int
    forbidden: frozenset[str]


class Piece(NamedTuple):
    """Lexemes of a terminal, and the ignored text after them."""

    token: str
    lexemes: Grammar
    ignored: Grammar


class _StateClass(NamedTuple):
    """What distinguishes the parser states that a terminal leads to.

    Attributes:
        kind: the kind of the lexer there.
        readable: the letters that it may read, and the end of the text.
        expected: the letters that a terminal that is not ignored may begin with, and the end of the text.
    """

    kind: int
    readable: int
    expected: int


class Contexts:
    """The contexts of a grammar.

    Attributes:
        state_classes: by parser state, the number of its class.
    """

    def __init__(self, tables: Tables, lexemes: Lexemes) -> None:
        self._tables = tables
        self._lexemes = lexemes
        self._guards = lexemes.guards
        self._all = lexemes.machine.alphabet.all
        self._starts = [lexemes.machine.start(lexer) for lexer in tables.lexers]
        end = lexemes.machine.alphabet.end
        self._readable = [lexemes.machine.alive[state] | end for state in self._starts]
        self._reached_by: list[str | None] = [None] * len(tables.goto)
        self._readable_after: dict[str, int] = {}
        for transitions in tables.goto:
            for (name, is_terminal), target in transitions.items():
                if is_terminal:
                    self._reached_by[target] = name
                    mask = self._readable[tables.scanners[target]]
                    self._readable_after[name] = self._readable_after.get(name, 0) | mask
        self._chosen: list[dict[str, tuple[int, Behaviour]]] = []
        self._kinds = self._divided()
        self.state_classes: list[int] = []
        self._classes: list[_StateClass] = []
        self._settle()
        self._between: dict[tuple[int, int], dict[int, Grammar]] = {}

    def _behaviour(self, lexer: int, guard: int, token: str) -> Behaviour:
        readable = self._all if token == _IGNORED else self._readable_after.get(token, 0)
        return self._lexemes.behaviour(self._starts[lexer], guard, token, self._tables.ignored, readable)

    def _divided(self) -> list[int]:
        """Return the kind of each lexer."""
        kinds = [DEAD] * len(self._starts)
        for lexer in sorted(range(len(kinds)), key=lambda index: (-len(self._tables.terminals[index]), index)):
            tokens = [_IGNORED, *sorted(self._tables.terminals[lexer])]
            found = {token: (lexer, self._behaviour(lexer, FREE, token)) for token in tokens}
            fitting = (
                kind
                for kind, known in enumerate(self._chosen)
                if all(known[token][1] is found[token][1] for token in tokens if token in known)
            )
            kinds[lexer] = next(fitting, len(self._chosen))
            if kinds[lexer] == len(self._chosen):
                self._chosen.append({})
            for token in tokens:
                self._chosen[kinds[lexer]].setdefault(token, found[token])
        return kinds

    def _settle(self) -> None:
        """Group the parser states in which the lexers do the same."""
        end = self._lexemes.machine.alphabet.end
        guards_after: dict[str | None, set[int]] = {None: {FREE}}
        for known in self._chosen:
            for token, (_, behaviour) in known.items():
                guards_after.setdefault(token, set()).update(behaviour.guards)
        numbers: dict[object, int] = {}
        for state, lexer in enumerate(self._tables.scanners):
            readable = self._readable[lexer]
            expected = end
            for token in self._tables.terminals[lexer]:
                expected |= self._behaviour(lexer, FREE, token).first
            reached = self._reached_by[state]
            first = sorted(guards_after.get(reached, {FREE}))
            later = sorted({*first, *guards_after.get(_IGNORED, ())})
            key = (
                self._kinds[lexer],
                reached,
                tuple(self._guards.restricted(guard, readable) for guard in first),
                tuple(self._guards.restricted(guard, expected) for guard in later),
            )
            number = numbers.setdefault(key, len(numbers))
            if number == len(self._classes):
                self._classes.append(_StateClass(self._kinds[lexer], readable, expected))
            else:
                old = self._classes[number]
                self._classes[number] = _StateClass(old.kind, old.readable | readable, old.expected | expected)
            self.state_classes.append(number)

    def first(self) -> dict[Context, Grammar]:
        """Return the contexts at the start of a text, each with the ignored text before it."""
        state_class = self.state_classes[0]
        return {
            Context(self._classes[state_class].kind, guard, frozenset()): term
            for guard, term in self._ignored(state_class, FREE).items()
        }

    def is_end(self, context: Context, end_name: str) -> bool:
        """Return whether the text may end in a context."""
        return (
            end_name not in context.forbidden
            and not self._guards.fails[context.guard] & self._lexemes.machine.alphabet.end
        )

    def source(self, context: Context, token: str) -> tuple[int, int] | None:
        """Return what decides which lexemes of ``token`` are read in a context; None if it cannot come there."""
        known = self._chosen[context.kind].get(token)
        if known is None or token in context.forbidden:
            return None
        return known[1].number, self._guards.restricted(context.guard, known[1].first)

    def shift(self, context: Context, token: str, state_class: int) -> dict[Context, list[Piece]]:
        """Return what may be read for ``token`` before a parser state of a class, by the context there."""
        known = self._chosen[context.kind].get(token)
        if known is None or token in context.forbidden:
            return {}
        where = self._classes[state_class]
        behaviour = self._behaviour(known[0], self._guards.restricted(context.guard, known[1].first), token)
        by_guard = self._by_guard(behaviour, where)
        found: dict[Context, list[Piece]] = {}
        for guard, guards in by_guard.items():
            lexemes = self._lexemes.term(behaviour, frozenset(guards), token)
            for after, ignored in self._ignored(state_class, guard).items():
                target = Context(where.kind, after, frozenset())
                found.setdefault(target, []).append(Piece(token, lexemes, ignored))
        return found

    def _ignored(self, state_class: int, guard: int) -> dict[int, Grammar]:
        """Return the ignored text in states of a class, by the guard after it, as far as it matters to terminals."""
        key = (state_class, guard)
        found = self._between.get(key)
        if found is None:
            where = self._classes[state_class]
            graph: dict[int, list[tuple[Grammar, int]]] = {}
            work = [guard]
            while work:
                before = work.pop()
                if before in graph:
                    continue
                graph[before] = self._steps(where, before)
                work.extend(target for _, target in graph[before])
            ways = {node: self._guards.restricted(node, where.expected) for node in graph}
            solved = paths(graph, ways, self._tables.start)[guard]
            found = self._between[key] = dict(solved)
        return found

    def _steps(self, where: _StateClass, guard: int) -> list[tuple[Grammar, int]]:
        """Return single lexemes of ignored text, with the guard after each."""
        if not self._tables.ignored:
            return []
        lexer = self._chosen[where.kind][_IGNORED][0]
        behaviour = self._behaviour(lexer, guard, _IGNORED)
        return [
            (self._lexemes.term(behaviour, frozenset(guards), _IGNORED), after)
            for after, guards in self._by_guard(behaviour, where).items()
        ]

    def _by_guard(self, behaviour: Behaviour, where: _StateClass) -> dict[int, set[int]]:
        """Return the guards after lexemes, by what they forbid of the letters that may be read there."""
        found: dict[int, set[int]] = {}
        for guard in behaviour.guards:
            found.setdefault(self._guards.restricted(guard, where.readable), set()).add(guard)
        return found
