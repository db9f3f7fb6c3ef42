"""Lints: findings about a grammar or schema that its author may not expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from structgen.engine.lint.part import (
    empty_parts,
    unbounded_parts,
    unbounded_white_space,
    unreachable_rules,
    useless_captures,
    weak_keywords,
)
from structgen.engine.lint.subject import Finding, Severity, Subject, subject_of
from structgen.errors import LimitExceeded
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import postorder
from structgen.grammar.nodes.description import Described

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["Finding", "Severity", "lint"]

_DEFAULT_LIMITS: Final = Limits()
_SCHEMA: Final = "json schema"
_FOR_ANY_SIZE: Final = ("unreachable rules",)
_MAX_NODES: Final = 60_000
"""Largest number of nodes for which all lints run."""
_MAX_FINDINGS: Final = 50
"""Findings of one lint."""


def lint(grammar: Grammar, *, limits: Limits = _DEFAULT_LIMITS) -> list[Finding]:
    """Return findings about a closed grammar that its author may not expect, warnings first.

    JSON Schemas are linted by keyword, other grammars by rule; the rules made from a schema have no names that its
    author knows.  ``limits.grammar_nodes`` bounds how many nodes are examined.

    Raises:
        GrammarError: a reference has no rule.

    Complexity: linear in the grammar, and a bounded search with automata; see each lint.  Above 60,000 nodes only
        unused rules are reported, with a finding that says so.
    """
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
    from structgen.engine.lint.ambiguity import (
        ambiguous_texts,
        colliding_terminals,
        hidden_parts,
        nullable_terminals,
    )
    from structgen.engine.lint.collision import collisions  # neither is imported to lint a schema

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
