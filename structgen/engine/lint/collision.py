"""Lint about terminals and keywords that are allowed at the same position of the rules and share a string."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.engine.analysis.byte_graph import byte_vocabulary, string_language
from structgen.engine.constraint import compile
from structgen.engine.lint import Finding, Severity, base_name
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.grammar import nodes as ir
from structgen.grammar.analysis import free_references
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.nodes.description import Described

if TYPE_CHECKING:
    from structgen.engine.constraint import Constraint
    from structgen.engine.lint import Subject

__all__ = ["RulePosition", "RulePositions", "collisions"]

_MAX_STEPS: Final = 200_000
"""Terms that are examined, each with its follow set."""


@dataclass(frozen=True, slots=True)
class RulePosition:
    """A position in a rule where one of several terminals may come next.

    Attributes:
        rule: the rule; ``""`` is the body of the grammar.
        after: number of the terminal or keyword before the position; -1 at the start of the rule.
        next: the terminals and keywords that may come next, as bits.
    """

    rule: str
    after: int
    next: int


@final
@dataclass(eq=False)
class RulePositions:
    """The positions of the rules: at their start, and after each terminal or keyword.

    Terminals and the keywords of rules are numbered.  What follows the end of a rule is ignored, because it depends on
    the reference.

    Complexity: O(n * t) for n nodes and t terminals and keywords, and a bounded number of steps.

    Source: the FIRST sets of P. M. Lewis, R. E. Stearns, "Syntax-directed transduction" (1968, JACM 15).

    Attributes:
        terms: the terminals and keywords, by number.
        names: the names of terminals, ``""`` for keywords.
        after: what may directly follow each of them within some rule, as bits.
        positions: all positions; none if there are too many to examine.
    """

    subject: Subject
    terms: list[Grammar] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    positions: list[RulePosition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.after: dict[int, int] = defaultdict(int)
        self._number: dict[Grammar | str, int] = {}
        rules = self.subject.rules
        self._own = {name: term for name, term in rules.items() if self._terminal(name) is None}
        self._first = self._first_of_rules()
        self.positions = self._walk()

    def _terminal(self, name: str) -> int | None:
        """Return the number of a terminal, None for a rule."""
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
        if isinstance(node, ir.Reference):
            return self._terminal(node.name)
        if isinstance(node, ir.Literal) and node.data:
            if node not in self._number:
                self._add(node, node, "")
            return self._number[node]
        return None

    def _first_of_rules(self) -> dict[str, int]:
        """Return the FIRST set of each rule: the least fixed point."""
        first = dict.fromkeys(self._own, 0)
        users: dict[str, list[str]] = defaultdict(list)
        for name, term in self._own.items():
            for node in postorder(term):
                if isinstance(node, ir.Reference) and node.name in self._own:
                    users[node.name].append(name)
        agenda = dict.fromkeys(self._own)
        self._firsts: dict[int, int] = {}
        steps = 0
        while agenda and steps < _MAX_STEPS:
            name, _ = agenda.popitem()
            made: dict[int, int] = {}
            for node in postorder(self._own[name]):
                made[id(node)] = self._first_of(node, made, first)
                steps += 1
            self._firsts |= made
            if made[id(self._own[name])] != first[name]:
                first[name] = made[id(self._own[name])]
                agenda |= dict.fromkeys(users[name])
        self._gave_up = bool(agenda)
        return first

    def _first_of(self, node: Grammar, made: dict[int, int], first: dict[str, int]) -> int:
        atom = self._atom(node)
        if atom is not None:
            return 1 << atom
        if isinstance(node, ir.Reference):
            return first.get(node.name, 0)
        if isinstance(node, ir.Sequence):
            union = 0
            for item in node.items:
                union |= made[id(item)]
                if not self.subject.nullability(item):
                    break
            return union
        if isinstance(node, (ir.Choice, ir.Repeat)):
            union = 0
            for child in node.children:
                union |= made[id(child)]
            return union
        return made[id(node.body)] if isinstance(node, ir.Rules) else 0

    def _walk(self) -> list[RulePosition]:
        positions: dict[tuple[int, int], RulePosition] = {}

        def add(position: RulePosition) -> None:
            if position.next & (position.next - 1):  # more than one
                positions.setdefault((position.after, position.next), position)

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
                elif isinstance(node, ir.Sequence):
                    for item in reversed(node.items):
                        agenda.append((item, after))
                        after = self._firsts[id(item)] | (after if self.subject.nullability(item) else 0)
                elif isinstance(node, ir.Repeat):
                    agenda.append((node.item, after | self._firsts[id(node.item)] if node.max != 1 else after))
                elif isinstance(node, ir.Choice):
                    agenda += [(child, after) for child in node.items]
        return list(positions.values())


_MAX_COMPILED: Final = 500
"""Intersections of terminals that are compiled."""
_LIMITS: Final = Limits(regular_states=2_000, steps=1_000_000)
_SOMETHING: Final = ir.Repeat(ir.ANY_CHAR, 1, None)
_ANY_DIVISION: Final = ("division into terminals", "any")


def collisions(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each terminal that shares a string with another one, or with a keyword, at one position.

    Two cases are reported: a string of both, as ``if`` may be a name; and a string of a terminal that is also a keyword
    followed by the next terminal, as ``ifx`` may be a name, or ``if`` with a name.  Lark's lexer takes one of the two;
    a grammar that allows any division into terminals has both.

    Complexity: that of ``RulePositions``, and a compilation for each of up to 500 pairs.
    """
    if not isinstance(subject.grammar, Described) or _ANY_DIVISION not in subject.grammar.description.policies:
        return
    table = RulePositions(subject)
    search = _CollisionSearch(table)
    reported: set[frozenset[int]] = set()
    for position in table.positions:
        candidates = [number for number in range(len(table.terms)) if position.next >> number & 1]
        for number in candidates:
            if not table.names[number] or number in {one for pair in reported for one in pair if table.names[one]}:
                continue
            problem = search.problem(number, candidates)
            if problem is not None:
                reported.add(frozenset((number, problem.other)))
                yield _finding(subject, table, number, position, problem)


@dataclass(frozen=True, slots=True)
class _Collision:
    """A problem of a terminal: the other terminal or keyword, the text of the finding, and the remedy."""

    other: int
    text: str
    remedy: str


def _finding(
    subject: Subject, table: RulePositions, number: int, position: RulePosition, problem: _Collision
) -> Finding:
    name = table.names[number]
    where = subject.location(position.rule)
    inside = f"rule {base_name(position.rule)!r}" + (f" ({where})" if where else "")
    # Terminals often share strings on purpose, and the context decides; a keyword hardly ever does.
    term = table.terms[problem.other]
    is_word = isinstance(term, ir.Literal) and term.data[:1].isalpha()
    return Finding(
        "terminals at one place",
        Severity.WARNING if is_word else Severity.INFORMATION,
        subject.location(name),
        f"terminal {name!r} {problem.text}, in {inside}",
        problem.remedy,
    )


class _CollisionSearch:
    def __init__(self, table: RulePositions) -> None:
        self._table = table
        self._shared_strings: dict[tuple[tuple[int, ...], int], str | None] = {}
        self._constraints: dict[int, Constraint | None] = {}
        self._tried = 0
        self._closed = [not free_references(term) for term in table.terms]

    def problem(self, number: int, candidates: list[int]) -> _Collision | None:
        """Return how a terminal collides with another of ``candidates``, None if it does not."""
        table = self._table
        name = table.names[number]
        others = [other for other in candidates if other != number and self._closed[other]]
        if not self._closed[number]:
            return None
        for other in others:
            text = self._shared((other,), number)
            if text is not None:
                return _Collision(
                    other,
                    f"is allowed where {self._called(other)} is, and {text!r} matches both",
                    f"exclude it from the terminal, as in {name}: /.../ & ~{self._written(other)}, "
                    'or read the grammar with lexer="contextual"',
                )
        for other in others:
            for after in range(len(table.terms)):
                if table.after[other] >> after & 1 and self._closed[after]:
                    text = self._shared((other, after), number)
                    if text is not None:
                        return _Collision(
                            other,
                            f"is allowed where {self._called(other)} is, and {text!r} matches it as well as "
                            f"{self._called(other)} followed by {self._called(after)}",
                            f"require a blank between the two, end the word by /\\b/ as in /{self._bare(other)}\\b/, "
                            'or read the grammar with lexer="contextual"',
                        )
        return None

    def _called(self, number: int) -> str:
        name = self._table.names[number]
        return f"terminal {name!r}" if name else f"the word {self._bare(number)!r}"

    def _written(self, number: int) -> str:
        return self._table.names[number] or f'"{self._bare(number)}"'

    def _bare(self, number: int) -> str:
        term = self._table.terms[number]
        return (
            term.data.decode("utf-8", "backslashreplace") if isinstance(term, ir.Literal) else self._table.names[number]
        )

    def _shared(self, parts: tuple[int, ...], number: int) -> str | None:
        """Return a shortest non-empty string of a terminal that the terms of ``parts`` spell together."""
        if (parts, number) not in self._shared_strings:
            self._shared_strings[parts, number] = self._search(parts, number)
        return self._shared_strings[parts, number]

    def _search(self, parts: tuple[int, ...], number: int) -> str | None:
        terms = [self._table.terms[part] for part in parts]
        terminal = self._constraint(number)
        if terminal is None:
            return None
        word = terms[0]
        if isinstance(word, ir.Literal):
            matcher = terminal.matcher()
            if matcher.accept_bytes(word.data) < len(word.data):
                return None
            if len(terms) == 1:
                return word.data.decode("utf-8", "backslashreplace") if matcher.is_accepting else None
        self._tried += 1
        if self._tried > _MAX_COMPILED:
            return None
        constraint = _compiled(ir.Intersection((ir.Sequence(terms), self._table.terms[number], _SOMETHING)))
        if constraint is None:
            return None
        text = bytes(symbol for symbol in constraint.matcher().shortest_completion() if symbol >= 0)
        return text.decode("utf-8", "backslashreplace")

    def _constraint(self, number: int) -> Constraint | None:
        if number not in self._constraints:
            self._constraints[number] = _compiled(self._table.terms[number])
        return self._constraints[number]


def _compiled(term: Grammar) -> Constraint | None:
    try:
        texts = string_language(term)
        return compile(texts, byte_vocabulary(texts), limits=_LIMITS)
    except (UnsatisfiableGrammar, LimitExceeded, GrammarError):
        return None
