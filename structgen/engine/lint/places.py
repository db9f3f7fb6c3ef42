"""Which terminals and words may come next at one place of the rules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.grammar.nodes import Choice, Grammar, Literal, Reference, Repeat, Rules, Sequence, postorder

if TYPE_CHECKING:
    from structgen.engine.lint.subject import Subject

__all__ = ["Place", "Places"]

_MOST_STEPS: Final = 200_000
"""Terms that are looked at, each with what may come after it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one of several terminals may come next.

    Attributes:
        rule: the rule that the place is in; ``""`` is the beginning.
        behind: the terminal or the word that was read last; -1: the rule begins here.
        next: those that may come next, as bits.
    """

    rule: str
    behind: int
    next: int


@final
@dataclass(eq=False)
class Places:
    """The places of the rules: their beginnings, and behind each terminal or word.

    Terminals and words that rules spell have numbers.  What comes after the end of a rule is not looked at, because
    that differs from use to use.

    Complexity: O(n * t) for n nodes and t terminals and words, and a bounded number of steps.

    Source: the sets FIRST of P. M. Lewis, R. E. Stearns, "Syntax-directed transduction" (1968, JACM 15).

    Attributes:
        terms: the terminals and words, by number.
        names: their names: those of terminals, and ``""`` for words.
        after: what may directly follow each of them within some rule, as bits.
        found: the places; none where there are too many to look at.
    """

    subject: Subject
    terms: list[Grammar] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    found: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.after: dict[int, int] = defaultdict(int)
        self._number: dict[Grammar | str, int] = {}
        rules = self.subject.rules
        self._own = {name: term for name, term in rules.items() if self._terminal(name) is None}
        self._first = self._first_of_rules()
        self.found = self._walk()

    def _terminal(self, name: str) -> int | None:
        """The number of a terminal; None for a rule."""
        if name not in self.subject.terminals or name not in self.subject.rules:
            return None
        if name not in self._number:
            self._add(name, self.subject.rules[name], name)
        return self._number[name]

    def _add(self, key: Grammar | str, term: Grammar, name: str) -> None:
        self._number[key] = len(self.terms)
        self.terms.append(term)
        self.names.append(name)

    def _atom(self, node: Grammar) -> int | None:
        if isinstance(node, Reference):
            return self._terminal(node.name)
        if isinstance(node, Literal) and node.data:
            if node not in self._number:
                self._add(node, node, "")
            return self._number[node]
        return None

    def _first_of_rules(self) -> dict[str, int]:
        """What each rule may begin with: the least sets that fit together."""
        first = dict.fromkeys(self._own, 0)
        users: dict[str, list[str]] = defaultdict(list)
        for name, term in self._own.items():
            for node in postorder(term):
                if isinstance(node, Reference) and node.name in self._own:
                    users[node.name].append(name)
        agenda = dict.fromkeys(self._own)
        self._firsts: dict[int, int] = {}
        steps = 0
        while agenda and steps < _MOST_STEPS:
            name, _ = agenda.popitem()
            made: dict[int, int] = {}
            for node in postorder(self._own[name]):
                made[id(node)] = self._begin(node, made, first)
                steps += 1
            self._firsts |= made
            if made[id(self._own[name])] != first[name]:
                first[name] = made[id(self._own[name])]
                agenda |= dict.fromkeys(users[name])
        self._gave_up = bool(agenda)
        return first

    def _begin(self, node: Grammar, made: dict[int, int], first: dict[str, int]) -> int:
        atom = self._atom(node)
        if atom is not None:
            return 1 << atom
        if isinstance(node, Reference):
            return first.get(node.name, 0)
        if isinstance(node, Sequence):
            found = 0
            for item in node.items:
                found |= made[id(item)]
                if not self.subject.nullability(item):
                    break
            return found
        if isinstance(node, (Choice, Repeat)):
            found = 0
            for child in node.children:
                found |= made[id(child)]
            return found
        return made[id(node.body)] if isinstance(node, Rules) else 0

    def _walk(self) -> list[Place]:
        places: dict[tuple[int, int], Place] = {}

        def add(place: Place) -> None:
            if place.next & (place.next - 1):  # more than one
                places.setdefault((place.behind, place.next), place)

        seen: set[tuple[int, int]] = set()
        for name, term in self._own.items():
            add(Place(name, -1, self._first[name]))
            agenda = [(term, 0)]
            while agenda:
                node, after = agenda.pop()
                if (id(node), after) in seen:
                    continue
                seen.add((id(node), after))
                if self._gave_up or len(seen) > _MOST_STEPS:
                    return []
                atom = self._atom(node)
                if atom is not None:
                    add(Place(name, atom, after))
                    self.after[atom] |= after
                elif isinstance(node, Sequence):
                    for item in reversed(node.items):
                        agenda.append((item, after))
                        after = self._firsts[id(item)] | (after if self.subject.nullability(item) else 0)
                elif isinstance(node, Repeat):
                    agenda.append((node.item, after | self._firsts[id(node.item)] if node.max != 1 else after))
                elif isinstance(node, Choice):
                    agenda += [(child, after) for child in node.items]
        return list(places.values())
