"""Finds keywords of a report that constrain less than their author may think."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from structgen.grammar.report import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine import Report

__all__ = ["lint"]


def lint(report: Report) -> Iterator[str]:
    """Yield a line for each keyword that constrains less than its author may think.

    These are names that no specification knows, keywords that have no effect where they stand, and those that are
    left to a check at the end of a value.
    """
    from structgen.grammar.json_schema.coverage import KEYWORDS

    constraints = [name for name, keyword in KEYWORDS.items() if keyword.is_constraint]
    for entry in report.with_status(Status.CHECKED):
        yield f"{entry.where}: {entry.keyword!r} is checked at the end of a value, not by the automaton"
    for entry in report.with_status(Status.ANNOTATION):
        place = f"{entry.where}: {entry.keyword!r}"
        if entry.keyword in constraints:
            yield f"{place} has no effect here" + (f": {entry.detail}" if entry.detail else "")
        elif entry.keyword not in KEYWORDS and not entry.keyword.startswith("x-"):
            near = get_close_matches(entry.keyword, constraints, 1)
            yield f"{place} is a keyword of no specification" + (f"; is {near[0]!r} meant?" if near else "")
