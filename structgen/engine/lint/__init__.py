"""Lints: findings about a grammar or schema that its author may not expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property
from itertools import islice
from typing import Final

from structgen.engine.report import entries_of
from structgen.errors import LimitExceeded
from structgen.grammar.analysis import Nullability
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Reference, Rules, Shared, postorder
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import resolve

__all__ = ["Finding", "Severity", "Subject", "base_name", "lint", "subject_of"]

_DEFAULT_LIMITS: Final = Limits()
_SCHEMA: Final = "json schema"
_FOR_ANY_SIZE: Final = ("unreachable rules",)
_MAX_NODES: Final = 60_000
"""Largest number of nodes for which all lints run."""
_MAX_FINDINGS: Final = 50
"""Findings of one lint."""


class Severity(Enum):
    """How much a finding matters."""

    WARNING = "warning"
    """Very likely a mistake."""
    INFORMATION = "information"
    """True of many good grammars, and useful to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a description that its author may not expect.

    Attributes:
        lint: the lint, for instance ``"unreachable rule"``.
        severity: how much it matters.
        where: the location: ``line:column``, a JSON Pointer, or ``""`` if the description has no locations.
        problem: a sentence that states the fact, with names.
        remedy: what to do about it, or ``""``.
    """

    lint: str
    severity: Severity
    where: str
    problem: str
    remedy: str = ""

    @property
    def is_warning(self) -> bool:
        """Whether it is very likely a mistake."""
        return self.severity is Severity.WARNING

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON values."""
        return asdict(self) | {"severity": self.severity.value}

    def __str__(self) -> str:
        location = f"{self.where}: " if self.where else ""
        return location + self.problem + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, eq=False)
class Subject:
    """The input of lints.

    Attributes:
        grammar: the grammar itself.
        rules: expressions by name, with unique names.
        body: the start expression.
        locations: where rules and terminals are defined, by name.
        terminals: the names that the description defines as terminals.
        defined: the names of the rules that it defines, in use or not, without terminals.
    """

    grammar: Grammar
    rules: dict[str, Grammar]
    body: Grammar
    locations: dict[str, str]
    terminals: frozenset[str]
    defined: tuple[str, ...]

    def location(self, name: str) -> str:
        """Return where a rule is defined, or ``""``; instances and variants of a rule are where the rule is."""
        return self.locations.get(name, self.locations.get(base_name(name), ""))

    @cached_property
    def nullability(self) -> Nullability:
        """Tells which terms match the empty string."""
        return Nullability(self.rules)

    @cached_property
    def references(self) -> dict[str, list[str]]:
        """The names of the rules that each rule refers to."""
        return {name: _names(term) for name, term in self.rules.items()}

    def reachable(self) -> set[str]:
        """Return the names of the rules that are reachable from the start."""
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
    """Flatten a grammar, and look up where its rules are defined.

    Raises:
        LimitExceeded: its rules have no small flat form.
        GrammarError: a reference has no rule.
    """
    _, entries, _ = entries_of(grammar)
    locations: dict[str, str] = {}
    kinds: dict[str, list[str]] = {"rule": [], "terminal": []}
    for entry in entries:
        kind, _, name = entry.keyword.partition(" ")
        if name and kind in kinds:
            locations.setdefault(name, entry.where)
            kinds[kind].append(name)
    flat = _flat(grammar, limits)
    return Subject(
        grammar,
        dict(flat.rules),
        flat.body,
        locations,
        frozenset(kinds["terminal"]),
        tuple(dict.fromkeys(kinds["rule"])),
    )


def _flat(grammar: Grammar, limits: Limits) -> Rules:
    """Return the grammar with one set of rules: itself if it has only one, as most large grammars."""
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
    """Return the name that the author gave to a rule, without template arguments and the number of a variant."""
    name = name.split("{", 1)[0]
    base, _, number = name.rpartition(".")
    return base if base and number.isdigit() else name


def _names(term: Grammar) -> list[str]:
    return [node.name for node in postorder(term) if isinstance(node, Reference)]


def lint(grammar: Grammar, *, limits: Limits = _DEFAULT_LIMITS) -> list[Finding]:
    """Return findings about a closed grammar that its author may not expect, warnings first.

    JSON Schemas are linted by keyword, other grammars by rule; the rules made from a schema have no names that its
    author knows.  ``limits.grammar_nodes`` bounds how many nodes are examined.

    Raises:
        GrammarError: a reference has no rule.

    Complexity: linear in the grammar, and a bounded search with automata; see each lint.  Above 60,000 nodes only
        unused rules are reported, with a finding that says so.
    """
    from structgen.engine.lint.part import weak_keywords

    described = [node.description for node in postorder(grammar) if isinstance(node, Described)]
    schemas = [description for description in described if description.source == _SCHEMA]
    findings = [finding for schema in schemas for finding in weak_keywords(schema.entries)]
    if len(schemas) < len(described) or not described:
        try:
            subject = subject_of(grammar, limits)
        except LimitExceeded:  # its rules have no small flat form
            return findings
        findings += _of_rules(subject)
    return sorted(findings, key=lambda finding: not finding.is_warning)


def _lints_of_rules() -> dict[str, Callable[[Subject], Iterator[Finding]]]:
    from structgen.engine.lint.ambiguity import ambiguous_texts, colliding_terminals, hidden_parts, nullable_terminals
    from structgen.engine.lint.collision import collisions  # neither is imported to lint a schema
    from structgen.engine.lint.part import (
        empty_parts,
        unbounded_parts,
        unbounded_white_space,
        unreachable_rules,
        useless_captures,
    )

    return {
        "unreachable rules": unreachable_rules,
        "empty parts": empty_parts,
        "empty terminal matches": nullable_terminals,
        "terminals at one place": collisions,
        "colliding terminals": colliding_terminals,
        "hidden parts": hidden_parts,
        "ambiguity": ambiguous_texts,
        "unbounded white space": unbounded_white_space,
        "bounds on the length": unbounded_parts,
        "captures": useless_captures,
    }


def _of_rules(subject: Subject) -> Iterator[Finding]:
    lints = _lints_of_rules()
    names = list(lints)
    reported: set[tuple[str, str]] = set()
    if sum(1 for _ in islice(postorder(subject.grammar), _MAX_NODES + 1)) > _MAX_NODES:
        names = list(_FOR_ANY_SIZE)
        left_out = [name for name in lints if name not in names]
        yield Finding(
            "left out",
            Severity.INFORMATION,
            "",
            f"the grammar has more than {_MAX_NODES:,} nodes; not checked: {', '.join(left_out)}",
            "check its parts by themselves",
        )
    for name in names:
        findings = [finding for finding in lints[name](subject) if (name, finding.where) not in reported]
        if name == "terminals at one place":  # implies that they share a string
            reported = {("colliding terminals", finding.where) for finding in findings}
        yield from findings[:_MAX_FINDINGS]
        if len(findings) > _MAX_FINDINGS:
            last = findings[-1]
            more = f"there are {len(findings) - _MAX_FINDINGS:,} more findings like this"
            yield Finding(last.lint, last.severity, last.where, more)
