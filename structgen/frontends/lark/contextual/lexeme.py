"""Which strings a lexer takes for a terminal, and what may not follow.

A guard forbids the following text that would make another match win.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from typing import Final, NamedTuple, TypeAlias, TypeVar

from structgen.errors import LimitExceeded
from structgen.frontends.lark.contextual.graph import (
    equivalence_classes,
    leading_to,
    letters_by_class,
    paths,
    reachable,
    sources_of,
)
from structgen.frontends.lark.contextual.lexer_automaton import LexerAutomaton
from structgen.frontends.lark.contextual.pattern import LetterAlphabet
from structgen.grammar.limits import spend
from structgen.grammar.nodes import Grammar

__all__ = ["BROKEN", "FREE", "Behaviour", "Guards", "Lexemes"]

FREE: Final = 0
"""The guard that nothing breaks."""
BROKEN: Final = -1
_Node = TypeVar("_Node", bound=Hashable)


class Guards:
    """All guards of a grammar.

    Attributes:
        fails: by guard, the letters that break it; the end of the text may be one.
        targets: by guard, the next guard by letters.
    """

    def __init__(self, machine: LexerAutomaton, max_states: int, subject: str) -> None:
        self._machine = machine
        self._alphabet: LetterAlphabet = machine.alphabet
        self._max_states = max_states
        self._subject = subject
        self._spent = 0
        self.fails: list[int] = [0]
        self.targets: list[tuple[tuple[int, int], ...]] = [()]
        self._ids: dict[object, int] = {(0, ()): FREE}
        self._both: dict[tuple[int, int], int] = {}
        self._after: dict[tuple[int, int, int], int] = {}

    def step(self, guard: int, letters: int) -> int:
        """Return the guard after any of ``letters``, which it must treat alike."""
        if self.fails[guard] & letters:
            return BROKEN
        return next((target for mask, target in self.targets[guard] if mask & letters), FREE)

    def divide(self, guard: int, letters: int) -> list[tuple[int, int]]:
        """Return the ``letters`` that do not break the guard, in sets with the guard after each."""
        if guard == FREE:
            return [(letters, FREE)] if letters else []
        letters &= ~self.fails[guard]
        parts: list[tuple[int, int]] = []
        for mask, target in self.targets[guard]:
            if mask & letters:
                parts.append((mask & letters, target))
                letters &= ~mask
        return [*parts, (letters, FREE)] if letters else parts

    def after(self, state: int, following: int, readable: int) -> int:
        """Return the guard after a match that ends in a state of the lexer.

        Of the ``readable`` letters, which may come next at all, those in ``following`` let the match count.
        """
        key = (state, following, readable)
        found = self._after.get(key)
        if found is None:
            if not (self._machine.alive[state] | ~following & self._alphabet.all) & readable:
                found = FREE
            else:
                found = self._interned((~state, following), partial(self._expand_run, readable))
            self._after[key] = found
        return found

    def _expand_run(self, readable: int, node: tuple[int, int]) -> tuple[int, list[tuple[int, tuple[int, int]]]]:
        state, following = node
        if state >= 0:
            readable = self._alphabet.all
        else:  # the first state, which equals no other
            state = ~state
        edges = []
        fails = self._alphabet.all & ~following
        for letters, target in self._machine.following(state).items():
            matches = 0
            for _, _, mask in self._machine.ends[target]:
                matches |= mask
            if matches == self._alphabet.all:
                fails |= letters
            elif letters & following & readable:
                edges.append((letters & following & readable, (target, self._alphabet.all & ~matches)))
        return fails & readable, edges

    def both(self, one: int, other: int) -> int:
        """Return the guard that is broken where either is."""
        if one in {FREE, other}:
            return other
        if other == FREE:
            return one
        key = (min(one, other), max(one, other))
        found = self._both.get(key)
        if found is None:
            found = self._both[key] = self._interned(key, self._expand_both)
        return found

    def _expand_both(self, node: tuple[int, int]) -> tuple[int, list[tuple[int, tuple[int, int]]]]:
        one, other = node
        fails = self.fails[one] | self.fails[other]
        edges = []
        for letters, left in self.divide(one, self._alphabet.all & ~fails & ~self._alphabet.end):
            edges += [(part, (min(left, right), max(left, right))) for part, right in self.divide(other, letters)]
        return fails, edges

    def restricted(self, guard: int, readable: int) -> int:
        """Return the guard without the effect of first letters outside ``readable``, which cannot come."""
        if guard == FREE:
            return FREE
        targets = tuple((mask & readable, target) for mask, target in self.targets[guard] if mask & readable)
        return self._hashed(self.fails[guard] & readable, targets)

    def _hashed(self, fails: int, targets: tuple[tuple[int, int], ...]) -> int:
        key = (fails, tuple(sorted(targets, key=lambda pair: pair[1])))
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.fails)
            self.fails.append(fails)
            self.targets.append(key[1])
        return found

    def _interned(self, root: _Node, expand: Callable[[_Node], tuple[int, list[tuple[int, _Node]]]]) -> int:
        """Return the guard of the automaton that ``expand`` makes."""
        fails: dict[_Node, int] = {}
        edges: dict[_Node, list[tuple[int, _Node]]] = {}
        work = [root]
        while work:
            node = work.pop()
            if node in fails:
                continue
            fails[node], found = expand(node)
            edges[node] = found
            work.extend(target for _, target in found)
            self._spent += 1 + len(found)
            if self._spent > self._max_states * 8:
                raise LimitExceeded(
                    self._subject,
                    limit="regular_states",
                    maximum=self._max_states,
                    evidence="the guards after its terminals need more",
                    remedy='choose terminals that are easier to tell apart, or use lexer="any"',
                )
        dangerous = leading_to([node for node, mask in fails.items() if mask], edges, sources_of(edges))
        if root not in dangerous:
            return FREE
        classes = equivalence_classes(dangerous, edges, fails.__getitem__, self._subject)
        return self._numbered(root, classes, fails, edges)

    def _numbered(
        self,
        root: _Node,
        classes: dict[_Node, int],
        fails: dict[_Node, int],
        edges: dict[_Node, list[tuple[int, _Node]]],
    ) -> int:
        by_class: dict[int, tuple[int, dict[int, int]]] = {}
        for node, found_class in classes.items():
            if found_class not in by_class:
                by_class[found_class] = (fails[node], letters_by_class(edges[node], classes))
        # A serialisation from the root identifies the automaton.
        order = {classes[root]: 0}
        listed = [classes[root]]
        shape: list[object] = []
        for number in listed:
            mask, merged = by_class[number]
            row = sorted((letters, target) for target, letters in merged.items())
            for _, target in row:
                if target not in order:
                    order[target] = len(order)
                    listed.append(target)
            shape.append((mask, tuple((letters, order[target]) for letters, target in row)))
        key = tuple(shape)
        found = self._ids.get(key)
        if found is not None:
            return found
        made: dict[int, int] = {}
        for each in reversed(listed):
            mask, merged = by_class[each]
            if any(target not in made for target in merged):
                break  # a cycle, or a shorter path to it was found first
            made[each] = self._hashed(mask, tuple((letters, made[target]) for target, letters in merged.items()))
        else:
            self._ids[key] = made[classes[root]]
            return made[classes[root]]
        base = len(self.fails)
        for number in listed:
            mask, merged = by_class[number]
            self.fails.append(mask)
            self.targets.append(tuple((letters, base + order[target]) for target, letters in merged.items()))
        self._ids[key] = base
        return base


_LexemeState: TypeAlias = tuple[int, int]
"""A state of the machine and the guard that the lexeme is read under."""

_MAX_COMPARED: Final = 20_000
"""Pairs of states that are examined to decide whether a language is that of the terminal as written."""


@dataclass(slots=True, eq=False)
class Behaviour:
    """The lexemes of a terminal in some context.

    Attributes:
        number: its number.
        edges: by state, the next state by letters; state 0 is the first.
        ends: by accepting state, the guard after a lexeme that ends there.
        first: the letters that a lexeme may begin with.
    """

    number: int
    edges: tuple[tuple[tuple[int, int], ...], ...]
    ends: dict[int, int]
    first: int = field(init=False)

    def __post_init__(self) -> None:
        self.first = reduce(or_, (letters for letters, _ in self.edges[0]), 0) if self.edges else 0

    @property
    def guards(self) -> list[int]:
        """The guards after the lexemes."""
        return sorted(set(self.ends.values()))


class _Reach(NamedTuple):
    """The transitions of a state of a lexer.

    Attributes:
        places: the nodes, by their places in breadth-first order.
        sources: by node, those with an edge to it.
        ends: by terminal, ``""`` for all that are ignored, where its lexemes end, and what the lexer tries there.
    """

    places: dict[_LexemeState, int]
    sources: dict[_LexemeState, list[_LexemeState]]
    ends: dict[str, list[tuple[_LexemeState, int]]]


class Lexemes:
    """All behaviours of a grammar."""

    def __init__(
        self, machine: LexerAutomaton, guards: Guards, plain: dict[str, Grammar], max_states: int, subject: str
    ) -> None:
        """Make an empty collection; ``plain`` has the terms of terminals as written, for those that have one."""
        self.machine = machine
        self.guards = guards
        self._plain = plain
        self._max_states = max_states
        self._subject = subject
        self._next: dict[_LexemeState, list[tuple[int, _LexemeState]]] = {}
        self._behaviours: dict[object, Behaviour] = {}
        self._known: dict[tuple[int, int, str, frozenset[str], int], Behaviour] = {}
        self._terms: dict[tuple[int, frozenset[int]], Grammar] = {}
        self._reached: dict[tuple[_LexemeState, frozenset[str]], _Reach] = {}

    def behaviour(self, state: int, guard: int, token: str, ignored: frozenset[str], readable: int) -> Behaviour:
        """Return the lexemes of ``token`` from a state of the automaton on.

        Args:
            state: a first state of a lexer.
            guard: holds for the text that is read.
            token: the terminal, or ``""`` for all that are ignored.
            ignored: the terminals that are ignored.
            readable: the letters that may come next after them.
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

    def _reach(self, root: _LexemeState, ignored: frozenset[str]) -> _Reach:
        """Return what a root leads to, made once: a lexer may have thousands of terminals."""
        found = self._reached.get((root, ignored))
        if found is None:
            found = _Reach({}, {}, {})
            places, sources = found.places, found.sources
            places[root] = 0
            listed = [root]
            for node in listed:  # grows in the loop
                for _, target in self._following(node):
                    if target in sources:
                        sources[target].append(node)
                        continue
                    sources[target] = [node]
                    if target != root:
                        places[target] = len(places)
                        listed.append(target)
                for tried, counted, following in self.machine.ends[node[0]]:
                    token = "" if tried in ignored else counted
                    found.ends.setdefault(token, []).append((node, following))
            edges = sum(map(len, found.sources.values()))
            spend(2 * (len(found.places) + edges), self._subject, "its terminals are hard to tell apart")
            self._reached[root, ignored] = found
        return found

    def _make(self, root: _LexemeState, token: str, ignored: frozenset[str], readable: int) -> Behaviour:
        reach = self._reach(root, ignored)
        ends: dict[_LexemeState, int] = {}
        for node, following in reach.ends.get(token, ()):
            guard = self.guards.after(node[0], following, readable)
            ends[node] = self.guards.both(self.guards.restricted(node[1], readable), guard)
        useful = sorted(reachable(ends, lambda node: reach.sources.get(node, ())), key=reach.places.__getitem__)
        spend(6 * len(useful), self._subject, "its terminals are hard to tell apart")
        if not useful or useful[0] != root:
            return self._interned((), {})
        edges = {node: self._following(node) for node in useful}
        return self._numbered(root, equivalence_classes(edges, edges, ends.get, self._subject), ends)

    def _numbered(
        self, root: _LexemeState, classes: dict[_LexemeState, int], ends: dict[_LexemeState, int]
    ) -> Behaviour:
        example = {number: node for node, number in reversed(classes.items())}
        order = {classes[root]: 0}
        listed = [classes[root]]
        edges: list[tuple[tuple[int, int], ...]] = []
        final: dict[int, int] = {}
        for number in listed:
            merged = letters_by_class(self._following(example[number]), classes)
            row = sorted((letters & -letters, letters, target) for target, letters in merged.items())
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
        """Return the term of the lexemes after which one of ``guards`` holds."""
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
        """Return whether the language is that of the terminal as written."""
        machine = self.machine
        final = set(accepting)
        root = (0, machine.texts(token))
        seen = {root}
        work: list[tuple[int, frozenset[int]]] = [root]
        while work:
            state, pcs = work.pop()
            if machine.is_match(pcs) != (state in final) or len(seen) > _MAX_COMPARED:
                return False
            spend(4 + 3 * len(behaviour.edges[state]), self._subject, "its terminals are hard to tell apart")
            left = machine.alphabet.all & ~machine.alphabet.end
            for letters, target in behaviour.edges[state]:
                left &= ~letters
                for _, following in machine.read(pcs, letters):
                    pair = (target, following)
                    if pair not in seen:
                        seen.add(pair)
                        work.append(pair)
            if any(following for _, following in machine.read(pcs, left)):
                return False
        return True
