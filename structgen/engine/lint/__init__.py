"""Lints: what the author of a description may not know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from structgen.engine.lint.ambiguity import ambiguous_texts
from structgen.engine.lint.empty import empty_parts
from structgen.engine.lint.finding import Finding, Severity
from structgen.engine.lint.keywords import weak_keywords
from structgen.engine.lint.subject import subject_of
from structgen.engine.lint.terminals import colliding_terminals, nullable_terminals
from structgen.engine.lint.unbounded import unbounded_parts, unbounded_white_space
from structgen.engine.lint.unreachable import unreachable_rules
from structgen.errors import LimitExceeded
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import postorder
from structgen.grammar.report import Described

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["Finding", "Severity", "lint"]

_DEFAULT_LIMITS: Final = Limits()
_SCHEMA: Final = "json schema"
_LINTS: Final = (
    unreachable_rules,
    empty_parts,
    nullable_terminals,
    colliding_terminals,
    ambiguous_texts,
    unbounded_white_space,
    unbounded_parts,
)


def lint(grammar: Grammar, *, limits: Limits = _DEFAULT_LIMITS) -> list[Finding]:
    """Return what the author of a closed grammar may not know, warnings first.

    Of JSON Schemas the keywords are looked at; of grammars with rules, the rules.  Rules that were made from a schema
    have no names that its author knows, so that they are not.

    Args:
        grammar: a closed term.
        limits: ``grammar_nodes`` bounds how many nodes are looked at.

    Raises:
        GrammarError: a reference has no rule.

    Complexity: linear in the grammar, and a bounded search for what takes automata; see each lint.
    """
    described = [node.description for node in postorder(grammar) if isinstance(node, Described)]
    schemas = [description for description in described if description.source == _SCHEMA]
    findings = [finding for schema in schemas for finding in weak_keywords(schema.entries)]
    if len(schemas) < len(described) or not described:
        try:
            subject = subject_of(grammar, limits)
        except LimitExceeded:  # its rules have no small flat form
            return findings
        findings += [finding for each in _LINTS for finding in each(subject)]
    return sorted(findings, key=lambda finding: not finding.is_warning)
