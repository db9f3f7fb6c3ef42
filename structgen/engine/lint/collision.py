"""Terminals and words that may stand at the same position of the rules and share a string.

So that it is read in two ways.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.engine.analysis.byte_graph import byte_vocabulary, string_language
from structgen.engine.constraint import compile
from structgen.engine.lint.subject import Finding, Severity, base_name
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.grammar.analysis import free_references
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    ANY_CHAR,
    Choice,
    Grammar,
    Intersection,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    postorder,
)
from structgen.grammar.nodes.description import Described

if TYPE_CHECKING:
    from structgen.engine.constraint import Constraint
    from structgen.engine.lint.subject import Subject

__all__ = ["RulePosition", "RulePositions", "collisions"]

_MAX_STEPS: Final = 200_000
"""Terms that are looked at, each with what may come after it."""


@dataclass(frozen=True, slots=True)
class RulePosition:
    """Where one of several terminals may come next.

    Attributes:
        rule: the rule that the place is in; ``""`` is the prefix.
        after: the terminal or the word that was read last; -1: the rule begins here.
        next: those that may come next, as bits.
    """

    rule: str
    behind: int
    next: int


@final
@dataclass(eq=False)
class RulePositions:
    """The places of the rules: their prefixes, and after each terminal or word.

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
    found: list[RulePosition] = field(default_factory=list)

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
        while agenda and steps < _MAX_STEPS:
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

    def _walk(self) -> list[RulePosition]:
        places: dict[tuple[int, int], RulePosition] = {}

        def add(place: RulePosition) -> None:
            if place.next & (place.next - 1):  # more than one
                places.setdefault((place.behind, place.next), place)

        seen: set[tuple[int, int]] = set()
        for name, term in self._own.items():
            add(RulePosition(name, -1, self._first[name]))
            agenda = [(term, 0)]
            while agenda:
                node, after = agenda.pop()
                if (id(node), after) in seen:
                    continue
                seen.add((id(node), after))
                if self._gave_up or len(seen) > _MAX_STEPS:
                    return []
                atom = self._atom(node)
                if atom is not None:
                    add(RulePosition(name, atom, after))
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


_MAX_COMPILED: Final = 500
"""Intersections of terminals that are compiled."""
_LIMITS: Final = Limits(regular_states=2_000, steps=1_000_000)
_SOMETHING: Final = Repeat(ANY_CHAR, 1, None)
_ANY_DIVISION: Final = ("division into terminals", "any")


def collisions(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each terminal that shares a text with another one, or with a word, at one place.

    Two cases are told: a text that both have, as ``if`` may be a name; and a text that a terminal has and that is also
    a word and what comes directly after it, as ``ifx`` may be a name, and ``if`` with a name.  Lark's lexer takes one
    of the two; where texts may be divided in any way, both are members.

    Complexity: that of ``Places``, and a compilation for each of up to 500 pairs.
    """
    if not isinstance(subject.grammar, Described) or _ANY_DIVISION not in subject.grammar.description.policies:
        return
    places = RulePositions(subject)
    search = _CollisionSearch(places)
    told: set[frozenset[int]] = set()
    for place in places.found:
        members = [number for number in range(len(places.terms)) if place.next >> number & 1]
        for number in members:
            if not places.names[number] or number in {one for pair in told for one in pair if places.names[one]}:
                continue
            problem = search.problem(number, members)
            if problem is not None:
                told.add(frozenset((number, problem.other)))
                yield _finding(subject, places, number, place, problem)


@dataclass(frozen=True, slots=True)
class _Collision:
    """What is wrong with a terminal: the other one, what is said of them, and the remedy."""

    other: int
    said: str
    remedy: str


def _finding(subject: Subject, places: RulePositions, number: int, place: RulePosition, problem: _Collision) -> Finding:
    name = places.names[number]
    where = subject.place(place.rule)
    inside = f"rule {base_name(place.rule)!r}" + (f" ({where})" if where else "")
    # Two terminals are often made to share texts, and something else tells them apart; a keyword hardly ever is.
    term = places.terms[problem.other]
    is_word = isinstance(term, Literal) and term.data[:1].isalpha()
    return Finding(
        "terminals at one place",
        Severity.WARNING if is_word else Severity.INFORMATION,
        subject.place(name),
        f"terminal {name!r} {problem.said}, in {inside}",
        problem.remedy,
    )


class _CollisionSearch:
    def __init__(self, places: RulePositions) -> None:
        self._places = places
        self._known: dict[tuple[tuple[int, ...], int], str | None] = {}
        self._readers: dict[int, Constraint | None] = {}
        self._tried = 0
        self._closed = [not free_references(term) for term in places.terms]

    def problem(self, number: int, members: list[int]) -> _Collision | None:
        """What is wrong with a terminal where it is one of ``members``, and what to do; None: nothing is."""
        places = self._places
        name = places.names[number]
        others = [other for other in members if other != number and self._closed[other]]
        if not self._closed[number]:
            return None
        for other in others:
            text = self._shared((other,), number)
            if text is not None:
                return _Collision(
                    other,
                    f"may stand where {self._called(other)} may, and {text!r} belongs to both",
                    f"leave it out of the terminal, as in {name}: /.../ & ~{self._written(other)}, "
                    'or read the grammar with lexer="contextual"',
                )
        for other in others:
            for behind in range(len(places.terms)):
                if places.after[other] >> behind & 1 and self._closed[behind]:
                    text = self._shared((other, behind), number)
                    if text is not None:
                        return _Collision(
                            other,
                            f"may stand where {self._called(other)} may, and {text!r} is one of it as well as "
                            f"{self._called(other)} with {self._called(behind)} after it",
                            f"ask for a blank between the two, end the word by /\\b/ as in /{self._bare(other)}\\b/, "
                            'or read the grammar with lexer="contextual"',
                        )
        return None

    def _called(self, number: int) -> str:
        name = self._places.names[number]
        return f"terminal {name!r}" if name else f"the word {self._bare(number)!r}"

    def _written(self, number: int) -> str:
        return self._places.names[number] or f'"{self._bare(number)}"'

    def _bare(self, number: int) -> str:
        term = self._places.terms[number]
        return (
            term.data.decode("utf-8", "backslashreplace") if isinstance(term, Literal) else self._places.names[number]
        )

    def _shared(self, parts: tuple[int, ...], number: int) -> str | None:
        """A shortest text that is not empty and belongs to a terminal, and to others one after the other."""
        if (parts, number) not in self._known:
            self._known[parts, number] = self._found(parts, number)
        return self._known[parts, number]

    def _found(self, parts: tuple[int, ...], number: int) -> str | None:
        terms = [self._places.terms[part] for part in parts]
        reader = self._reader(number)
        if reader is None:
            return None
        word = terms[0]
        if isinstance(word, Literal):
            matcher = reader.matcher()
            if matcher.accept_bytes(word.data) < len(word.data):
                return None
            if len(terms) == 1:
                return word.data.decode("utf-8", "backslashreplace") if matcher.is_accepting else None
        self._tried += 1
        if self._tried > _MAX_COMPILED:
            return None
        constraint = _compiled(Intersection((Sequence(terms), self._places.terms[number], _SOMETHING)))
        if constraint is None:
            return None
        text = bytes(symbol for symbol in constraint.matcher().shortest_completion() if symbol >= 0)
        return text.decode("utf-8", "backslashreplace")

    def _reader(self, number: int) -> Constraint | None:
        if number not in self._readers:
            self._readers[number] = _compiled(self._places.terms[number])
        return self._readers[number]


def _compiled(term: Grammar) -> Constraint | None:
    try:
        texts = string_language(term)
        return compile(texts, byte_vocabulary(texts), limits=_LIMITS)
    except (UnsatisfiableGrammar, LimitExceeded, GrammarError):
        return None
