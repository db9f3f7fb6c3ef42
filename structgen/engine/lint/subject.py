"""A grammar as lints see it, one flat set of rules with the locations of their definitions; and what a lint reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from structgen.engine.report import entries_of
from structgen.grammar.analysis import Nullability
from structgen.grammar.nodes import Grammar, Reference, Rules, Shared, postorder
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structgen.grammar.limits import Limits

__all__ = ["Finding", "Severity", "Subject", "base_name", "named", "subject_of"]


class Severity(Enum):
    """How much a finding matters."""

    WARNING = "warning"
    """Very likely not what the author means."""
    INFORMATION = "information"
    """True of many good grammars, and good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a description that its author may not know.

    Attributes:
        lint: which lint found it, for instance ``"unreachable rule"``.
        severity: how much it matters.
        where: the place: ``line:column``, a JSON Pointer, or ``""`` where the description has none.
        problem: a sentence that says what is found, with names.
        remedy: what to do about it, or ``""``.
    """

    lint: str
    severity: Severity
    where: str
    problem: str
    remedy: str = ""

    @property
    def is_warning(self) -> bool:
        """Whether it is very likely not meant."""
        return self.severity is Severity.WARNING

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON values."""
        return {
            "lint": self.lint,
            "severity": self.severity.value,
            "where": self.where,
            "problem": self.problem,
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return place + self.problem + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, eq=False)
class Subject:
    """What lints look at.

    Attributes:
        grammar: the grammar itself.
        rules: expressions by name, with unique names.
        body: where members begin.
        places: where rules and terminals are defined, by name.
        terminals: the names that the description defines as terminals.
        defined: the names of the rules that it defines, terminals left out, whether or not they are in use.
    """

    grammar: Grammar
    rules: dict[str, Grammar]
    body: Grammar
    places: dict[str, str]
    terminals: frozenset[str]
    defined: tuple[str, ...]

    def place(self, name: str) -> str:
        """Where the rule of this name is defined, or ``""``; instances and variants of a rule stand where it does."""
        return self.places.get(name, self.places.get(base_name(name), ""))

    @cached_property
    def nullability(self) -> Nullability:
        """Tells which terms match the empty text."""
        return Nullability(self.rules)

    @cached_property
    def references(self) -> dict[str, list[str]]:
        """The names of the rules that each rule refers to."""
        return {name: _names(term) for name, term in self.rules.items()}

    def reachable(self) -> set[str]:
        """Return the names of the rules that some way from the start leads to."""
        graph = self.references
        seen: set[str] = set()
        agenda = _names(self.body)
        while agenda:
            name = agenda.pop()
            if name not in seen and name in graph:
                seen.add(name)
                agenda += graph[name]
        return seen


def subject_of(grammar: Grammar, limits: Limits) -> Subject:
    """Make a grammar flat, and look up its places.

    Raises:
        LimitExceeded: its rules have no small flat form.
        GrammarError: a reference has no rule.
    """
    _, entries, _ = entries_of(grammar)
    places: dict[str, str] = {}
    kinds: dict[str, list[str]] = {"rule": [], "terminal": []}
    for entry in entries:
        kind, _, name = entry.keyword.partition(" ")
        if name and kind in kinds:
            places.setdefault(name, entry.where)
            kinds[kind].append(name)
    flat = _flat(grammar, limits)
    return Subject(
        grammar, dict(flat.rules), flat.body, places, frozenset(kinds["terminal"]), tuple(dict.fromkeys(kinds["rule"]))
    )


def _flat(grammar: Grammar, limits: Limits) -> Rules:
    """The grammar with one set of rules; itself where it has only one, as most that are large."""
    inner = grammar
    while isinstance(inner, Described):
        inner = inner.item
    if isinstance(inner, Rules):
        nodes = list(postorder(inner))
        names = {node.name for node in nodes if isinstance(node, Reference)}
        nested = sum(isinstance(node, (Rules, Shared, Described)) for node in nodes) > 1
        if not nested and names <= dict(inner.rules).keys():
            return inner
    return resolve(grammar, limits)


def base_name(name: str) -> str:
    """Return the name that the author gave to a rule: that of a template, without the number of a variant."""
    name = name.split("{", 1)[0]
    base, _, number = name.rpartition(".")
    return base if base and number.isdigit() else name


def named(names: Iterable[str], most: int = 5) -> str:
    """Names for a sentence: the first ones, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(map(repr, listed[:most])) + more


def _names(term: Grammar) -> list[str]:
    return [node.name for node in postorder(term) if isinstance(node, Reference)]
