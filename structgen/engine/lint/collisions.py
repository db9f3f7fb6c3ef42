"""Terminals and words that may stand at one place and share a text, so that it is read in two ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from structgen.engine.constraint import compile
from structgen.engine.lint.finding import Finding, Severity
from structgen.engine.lint.places import Places
from structgen.engine.lint.subject import base_name
from structgen.engine.single_bytes import byte_vocabulary, texts_of
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.grammar.analysis import free_references
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import ANY_CHAR, Grammar, Intersection, Literal, Repeat, Sequence
from structgen.grammar.report import Described

if TYPE_CHECKING:
    from structgen.engine.constraint import Constraint
    from structgen.engine.lint.places import Place
    from structgen.engine.lint.subject import Subject

__all__ = ["collisions"]

_MOST_TRIED: Final = 500
"""Intersections of terminals that are compiled."""
_SMALL: Final = Limits(regular_states=2_000, steps=1_000_000)
_SOMETHING: Final = Repeat(ANY_CHAR, 1, None)
_ANY_DIVISION: Final = ("division into terminals", "any")


def collisions(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each terminal that shares a text with another one, or with a word, at one place.

    Two cases are told: a text that both have, as ``if`` may be a name; and a text that a terminal has and that is also
    a word and what comes directly behind it, as ``ifx`` may be a name, and ``if`` with a name.  Lark's lexer takes one
    of the two; where texts may be divided in any way, both are members.

    Complexity: that of ``Places``, and a compilation for each of up to 500 pairs.
    """
    if not isinstance(subject.grammar, Described) or _ANY_DIVISION not in subject.grammar.description.policies:
        return
    places = Places(subject)
    search = _Search(places)
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
class _Problem:
    """What is wrong with a terminal: the other one, what is said of them, and the remedy."""

    other: int
    said: str
    remedy: str


def _finding(subject: Subject, places: Places, number: int, place: Place, problem: _Problem) -> Finding:
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


class _Search:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: dict[tuple[tuple[int, ...], int], str | None] = {}
        self._readers: dict[int, Constraint | None] = {}
        self._tried = 0
        self._closed = [not free_references(term) for term in places.terms]

    def problem(self, number: int, members: list[int]) -> _Problem | None:
        """What is wrong with a terminal where it is one of ``members``, and what to do; None: nothing is."""
        places = self._places
        name = places.names[number]
        others = [other for other in members if other != number and self._closed[other]]
        if not self._closed[number]:
            return None
        for other in others:
            text = self._shared((other,), number)
            if text is not None:
                return _Problem(
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
                        return _Problem(
                            other,
                            f"may stand where {self._called(other)} may, and {text!r} is one of it as well as "
                            f"{self._called(other)} with {self._called(behind)} behind it",
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
        if self._tried > _MOST_TRIED:
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
        texts = texts_of(term)
        return compile(texts, byte_vocabulary(texts), limits=_SMALL)
    except (UnsatisfiableGrammar, LimitExceeded, GrammarError):
        return None
