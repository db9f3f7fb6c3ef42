"""Keywords of a JSON Schema that constrain less than their author may think."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from structgen.engine.lint.finding import Finding, Severity
from structgen.grammar.report import ReportEntry, Status

__all__ = ["weak_keywords"]


def weak_keywords(entries: Iterable[ReportEntry]) -> Iterator[Finding]:
    """Yield a finding for each keyword that constrains less than its author may think.

    These are names that no specification knows, keywords that have no effect where they stand, and those that are
    left to a check at the end of a value.
    """
    from structgen.grammar.json_schema.coverage import KEYWORDS

    constraints = [name for name, keyword in KEYWORDS.items() if keyword.is_constraint]
    known = list(entries)
    for entry in known:
        if entry.status is Status.CHECKED:
            problem = f"{entry.keyword!r} is checked at the end of a value, not by the automaton"
            yield Finding("checked keyword", Severity.WARNING, entry.where, problem)
    for entry in known:
        if entry.status is not Status.ANNOTATION:
            continue
        if entry.keyword in constraints:
            problem = f"{entry.keyword!r} has no effect here" + (f": {entry.detail}" if entry.detail else "")
            yield Finding("keyword without effect", Severity.WARNING, entry.where, problem)
        elif entry.keyword not in KEYWORDS and not entry.keyword.startswith("x-"):
            near = get_close_matches(entry.keyword, constraints, 1)
            problem = f"{entry.keyword!r} is a keyword of no specification"
            yield Finding(
                "unknown keyword", Severity.WARNING, entry.where, problem, f"is {near[0]!r} meant?" if near else ""
            )
